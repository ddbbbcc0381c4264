"""An examination: its verdict, the answer about each fault, and its text. Imports no torch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.page import show
from clearhead.doctor.report.records import Line, ReadableRecord, labelled
from clearhead.doctor.report.verdict import BROKE, JUDGED, OUT_OF_TIME, WATCHED, Answer, Checked, Verdict
from clearhead.doctor.spec import Assumption
from clearhead.errors import DataError, FaultError
from clearhead.wording import counted, listed

STYLE = {"healthy": "green", "faulty": "bold red", "partial": "yellow", "unknown": "yellow"}
SHOWN = 8  # ids of a narrowed examination


@dataclass(frozen=True, repr=False)
class Report(ReadableRecord):
    """An examination. It speaks of the paths, shapes and weights that were run, and of nothing else.

    `only`: the ids and names of checks that it was narrowed to; empty for a whole one.
    """

    computed = ("verdict", "summary", "broken")

    target: str
    kind: str
    findings: tuple[Finding, ...]
    checks: tuple[Checked, ...]
    assumptions: tuple[Assumption, ...]
    paths: tuple[str, ...]
    seconds: float
    only: tuple[str, ...] = ()

    def __getitem__(self, id: str) -> Finding:
        """The finding of that id.

        Raises:
            KeyError: there is none.
        """
        return {finding.id: finding for finding in reversed(self.findings)}[id]

    def __contains__(self, id: object) -> bool:
        return any(finding.id == id for finding in self.findings)

    @property
    def _failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status == "fail"]

    def of_check(self, name: str) -> tuple[Finding, ...]:
        """What that check found, and no check before it."""
        return tuple(finding for finding in self.findings if finding.check == name)

    @property
    def verdict(self) -> Verdict:
        """What may be concluded, and no more.

        Faulty if anything failed, requested or not. Unknown if nothing that was requested could be judged, or if
        causality, the first thing to know, could not. Only a whole examination can be healthy; partial means that
        nothing failed in the part that was examined.
        """
        if "fail" in {*(finding.status for finding in self.findings), *(check.status for check in self.checks)}:
            return "faulty"
        if self._unanswered or not self.checks:
            return "unknown"
        return "partial" if self.only or any(check.is_missing for check in self.checks) else "healthy"

    @property
    def _unanswered(self) -> list[Checked]:
        """Checks without which nothing can be concluded: that of causality, or all that were requested."""
        requested = [check for check in self.checks if not self.only or any(map(check.can_find, self.only))]
        unjudged = [check for check in requested if check.status not in JUDGED]
        causality = [check for check in unjudged if check.name == "dependencies"]
        return causality or (unjudged if len(unjudged) == len(requested) else [])

    @property
    def unjudged(self) -> tuple[Checked, ...]:
        """Checks that should have answered and did not, so that the verdict covers less than what was requested.

        Checks that a fault blocks are not among them: until it is fixed, the fault is the answer.
        """
        excused = {"blocked"} if self.verdict == "faulty" else set()
        unanswered = [check for check in self.checks if any(map(check.can_find, self.open_words))]
        unanswered += self._unanswered if self.verdict == "unknown" else []
        return tuple(
            check for check in self.checks if check.status not in excused and (check.is_missing or check in unanswered)
        )

    @property
    def open_words(self) -> tuple[str, ...]:
        """Words of `only` about which no check came to an answer."""
        judged = [check for check in self.checks if check.status in JUDGED]
        return tuple(word for word in self.only if not any(check.can_find(word) for check in judged))

    @property
    def exit_code(self) -> int:
        """Of the command: 4 for a fault, 3 where something that was requested could not be examined, else 0."""
        if self.verdict == "faulty":
            return FaultError.exit_code
        return DataError.exit_code if self.verdict == "unknown" or self.unjudged else 0

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the checks that raised: the verdict does not cover what they look for."""
        return tuple(check.name for check in self.checks if check.broke)

    def answer(self, id: str) -> tuple[Answer, str]:
        """Whether a fault of the catalogue is there, and how that is known.

        "No" takes checks that can find it, that were made, and that found nothing at all: a check that was skipped,
        blocked or broke, or that found something else, rules out nothing. While any failure stands none is ruled out,
        because one fault can look like another and hide a third. A warning of another check hides nothing.
        """
        if id in self:
            location = self[id].where.place
            return "yes", self[id].evidence.witness + (f", in {location}" if location else "")
        for finding in self.findings:
            for cause in finding.causes:
                if cause.id == id:
                    return "unknown", f"what was found fits {finding.id} better, {cause.score:.0%} {id}"
        able = [check for check in self.checks if id in check.covers]
        in_the_way = [check for check in able if check.is_missing or check.status not in ("pass", "skip")]
        passed = [check for check in able if check.status == "pass"]
        if not passed or in_the_way:
            reasons = {self._reason(check) for check in in_the_way or able} - {""}
            return "unknown", "; ".join(sorted(reasons)) or WATCHED
        if self._failures:
            other = f"but {self._failures[0].id} was, and may hide it; fix that and ask again"
            return "unknown", f"it was looked for and not found, {other}"
        later = sorted({check.note for check in able if check.note.startswith("at --level")})
        return "no", "; ".join(check.holds for check in passed) + (f"; more is examined {later[0]}" if later else "")

    def _reason(self, check: Checked) -> str:
        """Why a check does not answer a question."""
        if check.status not in ("fail", "warn"):
            return check.note
        instead = " and ".join(dict.fromkeys(finding.id for finding in self.of_check(check.name)))
        return f"'{check.name}' found {instead or 'a fault'}"

    def raise_if_failed(self) -> None:
        """For your own tests.

        Raises:
            FaultError: the first fault, in one sentence, and how many more there are.
            DataError: something that was requested could not be examined, so that nothing is known about it.
        """
        if self._failures:
            first, *others = self._failures
            raise FaultError(first.sentence + (f" (and {len(others)} more)" if others else ""))
        if self.exit_code:
            raise DataError(self.summary)

    @property
    def summary(self) -> str:
        """The verdict in one line: of what, what it is, and what it rests on."""
        faults = len(self._failures)
        warnings = len(self.findings) - faults
        counts = [counted(faults, "fault") if faults else "", counted(warnings, "warning") if warnings else ""]
        verdict = {
            "unknown": "could not be judged",
            "partial": "was examined in part, and no fault was found there",
        }.get(self.verdict, f"is {self.verdict}")
        summed = f": {', '.join(filter(None, counts))}" if self.findings else ""
        n_applied = sum(check.status in JUDGED for check in self.checks)
        covered = f"{n_applied} of {counted(len(self.checks), 'check')} applied, {round(self.seconds, 3):.2f} s"
        return f"{self.target} {verdict}{summed}{self._gaps()}{self._kind()} ({covered})"

    def _gaps(self) -> str:
        """What the verdict does not cover, though a reader would expect it to."""
        count = Counter("late" if check.is_late else check.status for check in self.checks)
        is_faulty, open_ids = self.verdict == "faulty", listed([*self.open_words], SHOWN)
        gaps = {
            f"only {listed([*self.only], SHOWN)} {'was' if len(self.only) == 1 else 'were'} looked for": self.only,
            f"{counted(len(self.broken), 'check')} {BROKE}": self.broken,
            f"{OUT_OF_TIME} for {counted(count['late'], 'check')}": count["late"],
            f"{counted(count['waived'], 'check')} waived": count["waived"],
            f"{counted(count['blocked'], 'check')} blocked by a waived one": not is_faulty and count["blocked"],
            f"{open_ids} could not be judged": self.verdict == "partial" and open_ids,
        }
        return "".join(f"; {gap}" for gap, applies in gaps.items() if applies)

    def _kind(self) -> str:
        """The kind; where it was assumed, the weightiest reason, and how to declare another."""
        assumed = next((assumption for assumption in self.assumptions if assumption.about == "kind"), None)
        if assumed is None:
            return f" ({self.kind})"
        reason = assumed.reasons[0] if assumed.reasons else "nothing speaks against it"
        return f"; assumed to be {self.kind} because {reason}: {assumed.otherwise or '--kind declares another'}"

    def _repr_html_(self) -> str:
        return show(self)

    def _lines(self, verbose: bool) -> Iterator[Line]:
        yield self.summary, STYLE[self.verdict]
        for number, finding in enumerate(self.findings):
            if number:
                yield "", ""
            yield from finding.lines()
        yield from self._open()
        if not verbose:
            return
        for assumption in self.assumptions:
            yield labelled("assumed", assumption.sentence), ""
        yield labelled("paths", "; ".join(self.paths)), ""
        for status, label in (("pass", "passed"), ("skip", "skipped")):
            yield from _listing(label, [c for c in self.checks if c.status == status and not c.is_missing])

    def _open(self) -> Iterator[Line]:
        """What was not judged, and why: a verdict without it would claim too much."""
        for status in ("waived", "blocked"):
            yield from _listing(status, [check for check in self.checks if check.status == status])
        yield from _listing("skipped", [check for check in self.checks if check.is_late])
        for check in self.checks:
            if check.broke:
                sentence = f"{check.name} {check.note}: {' '.join(check.covers)} were not looked for"
                yield labelled("broke", sentence), "yellow"
        for id in self.only if len(self.only) <= SHOWN else ():  # a symptom tells each of its many causes itself
            answer, why = self.answer(id) if id in CATALOGUE else ("yes", "")
            if answer == "unknown":
                yield labelled("open", f"{id} {CATALOGUE[id].title}: {why}"), "yellow"


def _listing(label: str, checks: Sequence[Checked]) -> Iterator[Line]:
    """Names of checks, those with the same note together."""
    names: dict[str, list[str]] = {}
    for check in checks:
        names.setdefault(check.note, []).append(check.name)
    parts = [", ".join(alike) + (f" ({note})" if note else "") for note, alike in names.items()]
    if parts:
        yield labelled(label, ", ".join(parts)), ""
