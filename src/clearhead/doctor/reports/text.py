"""A report as a person reads it: lines with a style each. Imports no torch."""

from collections.abc import Iterator

from clearhead.doctor.reports.findings import BROKE, Finding, Report
from clearhead.doctor.reports.source import excerpt
from clearhead.pages import printable

Line = tuple[str, str]  # (text, style as rich names it, or nothing)
STYLE = {"fail": "bold red", "warn": "yellow", "healthy": "green", "faulty": "bold red", "unknown": "yellow"}
LABEL = 10  # columns
SIGNS = "rows are logits, columns tokens: # legal, ! illegal, - missing"


def lines(report: Report) -> Iterator[Line]:
    """The whole report: findings first, then what was checked, assumed and run, and the verdict last."""
    for text, style in _lines(report):
        yield printable(text), style


def of_finding(finding: Finding) -> list[str]:
    """One finding, as it stands in the report."""
    return [printable(text) for text, _ in _finding(finding)]


def conclusion(report: Report) -> str:
    """The verdict in a line."""
    faults = sum(finding.status == "fail" for finding in report.findings)
    warnings = len(report.findings) - faults
    count = f": {_count(faults, 'fault')}, {_count(warnings, 'warning')}" if report.findings else ""
    told = f"{count}, {_count(len(report.broken), 'check')} {BROKE}" if report.broken else count
    return f"{report.target} is {report.verdict}{told} ({report.kind}, {report.seconds:.2f} s)"


def _lines(report: Report) -> Iterator[Line]:
    for finding in report.findings:
        yield from _finding(finding)
        yield "", ""
    for assumption in report.assumptions:
        yield _labelled("assumed", assumption.sentence), ""
    yield _labelled("paths", "; ".join(report.paths)), ""
    for status in ("pass", "waived", "blocked", "skip"):
        named = [check for check in report.checks if check.status == status and not check.broke]
        if named:
            names: dict[str, list[str]] = {}
            for check in named:
                names.setdefault(check.note, []).append(check.name)
            notes = [", ".join(alike) + (f" ({note})" if note else "") for note, alike in names.items()]
            yield _labelled({"pass": "passed", "skip": "skipped"}.get(status, status), ", ".join(notes)), ""
    for check in report.checks:
        if check.broke:
            yield (
                _labelled("broke", f"{check.name} {check.note}: {' '.join(check.covers)} were not looked for"),
                "yellow",
            )
    yield conclusion(report), STYLE[report.verdict]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _finding(finding: Finding) -> Iterator[Line]:
    place = finding.where.module or ("the whole model" if finding.where.file is None else "")
    yield f"{finding.status.upper()} {finding.id}  {finding.title}  {place}".rstrip(), STYLE[finding.status]
    yield _labelled("evidence", finding.evidence.witness), ""
    if finding.where.place:
        op = f", at '{finding.where.op}'" if finding.where.op else ""
        yield _labelled("where", finding.where.place + op), ""
    code = excerpt(finding.where)
    if code is not None and code.line:
        yield _labelled("", code.line), "cyan"
    for number, row in enumerate(finding.picture):
        yield _labelled("picture" if number == 0 else "", row), "red" if "!" in row else ""
    if finding.picture:
        yield _labelled("", SIGNS), "dim"
    yield _labelled("why", finding.why), ""
    yield _labelled("fix", finding.fix), ""
    others = ", ".join(f"{id} {score:.0%}" for id, score in finding.causes[1:4])
    if others:
        yield _labelled("or", f"{others}; 'clearhead doctor explain ID' tells each"), ""
    if finding.repro:
        yield _labelled("again", finding.repro), ""


def _labelled(label: str, text: str) -> str:
    return f"  {label:<{LABEL}}{text}"
