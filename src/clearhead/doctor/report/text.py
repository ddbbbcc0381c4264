"""A report as a person reads it: lines with a style each. Imports no torch."""

from collections.abc import Iterator, Sequence

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.report.answers import answered
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.source import excerpt
from clearhead.doctor.report.verdict import BROKE, OUT_OF_TIME, Checked, Examined
from clearhead.pages import printable

Line = tuple[str, str]  # (text, style as rich names it, or nothing)
STYLE = {
    "fail": "bold red",
    "warn": "yellow",
    "healthy": "green",
    "faulty": "bold red",
    "partial": "yellow",
    "unknown": "yellow",
}
SHOWN = 8  # ids of a narrowed examination
LABEL = 10  # columns
SIGNS = "rows are logits, columns tokens: # legal, ! illegal, - missing"


def lines(report: Examined, *, verbose: bool = False) -> Iterator[Line]:
    """The verdict, what was found, and what is open; verbose also tells what was assumed, run and passed."""
    for text, style in _lines(report, verbose):
        yield printable(text), style


def of_finding(finding: Finding) -> list[str]:
    """One finding, as it stands in the report."""
    return [printable(text) for text, _ in _finding(finding)]


def conclusion(report: Examined) -> str:
    """The verdict in a line: of what, what it is, and what it rests on."""
    return f"{report.target} {_verdict(report)}{_gaps(report)}{_kind(report)} ({round(report.seconds, 3):.2f} s)"


def _verdict(report: Examined) -> str:
    faults = sum(finding.status == "fail" for finding in report.findings)
    warnings = len(report.findings) - faults
    counts = [_count(faults, "fault") if faults else "", _count(warnings, "warning") if warnings else ""]
    count = ", ".join(filter(None, counts))
    if report.verdict in ("faulty", "healthy"):
        return f"is {report.verdict}" + (f": {count}" if count else "")
    if report.verdict == "unknown":
        return "could not be judged" + (f": {count}" if count else "")
    return f"was examined in part, and no fault was found there{f': {count}' if count else ''}"


def _gaps(report: Examined) -> str:
    """What the verdict does not speak of, though it would be expected to."""
    parts = []
    if report.only:
        parts.append(f"only {_listed(report.only)} was looked for" if len(report.only) == 1
                    else f"only {_listed(report.only)} were looked for")  # fmt: skip
    if report.broken:
        parts.append(f"{_count(len(report.broken), 'check')} {BROKE}")
    late = sum(check.is_late for check in report.checks)
    if late:
        parts.append(f"{OUT_OF_TIME} for {_count(late, 'check')}")
    waived = sum(check.status == "waived" for check in report.checks)
    if waived:
        parts.append(f"{_count(waived, 'check')} waived")
    blocked = sum(check.status == "blocked" for check in report.checks)
    if blocked and report.verdict != "faulty":
        parts.append(f"{_count(blocked, 'check')} blocked by a waived one")
    if report.open_words and report.verdict == "partial":
        parts.append(f"{_listed(report.open_words)} could not be judged")
    return "".join(f"; {part}" for part in parts)


def _kind(report: Examined) -> str:
    """What it was taken for; where nobody said so, the weightiest reason for it, and how to say otherwise."""
    assumed = next((assumption for assumption in report.assumptions if assumption.about == "kind"), None)
    if assumed is None:
        return f" ({report.kind})"
    reason = assumed.reasons[0] if assumed.reasons else "nothing speaks against it"
    return f"; assumed to be {report.kind} because {reason}: {assumed.otherwise or '--kind says otherwise'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _lines(report: Examined, verbose: bool) -> Iterator[Line]:
    yield conclusion(report), STYLE[report.verdict]
    for number, finding in enumerate(report.findings):
        if number:
            yield "", ""
        yield from _finding(finding)
    yield from _open(report)
    if not verbose:
        return
    for assumption in report.assumptions:
        yield labelled("assumed", assumption.sentence), ""
    yield labelled("paths", "; ".join(report.paths)), ""
    for status, label in (("pass", "passed"), ("skip", "skipped")):
        yield from _checks(label, [check for check in report.checks if check.status == status and not check.is_missing])


def _open(report: Examined) -> Iterator[Line]:
    """What was not judged, and why: a verdict without it would say too much."""
    for status in ("waived", "blocked"):
        yield from _checks(status, [check for check in report.checks if check.status == status])
    late = [check for check in report.checks if check.is_late]
    yield from _checks("skipped", late)
    for check in report.checks:
        if check.broke:
            sentence = f"{check.name} {check.note}: {' '.join(check.covers)} were not looked for"
            yield labelled("broke", sentence), "yellow"
    if len(report.only) <= SHOWN:  # a symptom tells each of its many causes itself
        for id in report.only:
            answer, why = answered(id, report) if id in CATALOGUE else ("yes", "")
            if answer == "unknown":
                yield labelled("open", f"{id} {CATALOGUE[id].title}: {why}"), "yellow"


def _checks(label: str, checks: Sequence[Checked]) -> Iterator[Line]:
    """Names of checks, those of one note together."""
    names: dict[str, list[str]] = {}
    for check in checks:
        names.setdefault(check.note, []).append(check.name)
    parts = [", ".join(alike) + (f" ({note})" if note else "") for note, alike in names.items()]
    if parts:
        yield labelled(label, ", ".join(parts)), ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _finding(finding: Finding) -> Iterator[Line]:
    name = finding.where.module or ("the whole model" if finding.where.file is None else "")
    yield f"{finding.status.upper()} {finding.id}  {finding.title}  {name}".rstrip(), STYLE[finding.status]
    yield labelled("evidence", finding.evidence.witness), ""
    if finding.where.place:
        op = f", at '{finding.where.op}'" if finding.where.op else ""
        yield labelled("where", finding.where.place + op), ""
    code = excerpt(finding.where)
    if code is not None and code.line:
        yield labelled("", code.line), "cyan"
    for number, row in enumerate(finding.picture):
        yield labelled("picture" if number == 0 else "", row), "red" if "!" in row else ""
    if finding.picture:
        yield labelled("", SIGNS), "dim"
    yield labelled("why", finding.why), ""
    yield labelled("fix", finding.fix), ""
    others = ", ".join(f"{id} {score:.0%}" for id, score in finding.causes[1:4])
    if others:
        yield labelled("or", f"{others}; 'clearhead doctor explain ID' tells each"), ""
    if finding.repro:
        yield labelled("again", finding.repro), ""


def labelled(label: str, text: object) -> str:
    """A line of a finding, behind its label."""
    return f"  {label:<{LABEL}}{text}"
