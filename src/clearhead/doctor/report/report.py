"""An examination as a person reads it. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.report.records import Line, labelled
from clearhead.doctor.report.verdict import BROKE, OUT_OF_TIME, Checked, Examined
from clearhead.errors import DataError, FaultError
from clearhead.wording import counted

STYLE = {"healthy": "green", "faulty": "bold red", "partial": "yellow", "unknown": "yellow"}
SHOWN = 8  # ids of a narrowed examination


@dataclass(frozen=True, repr=False)
class Report(Examined):
    """An examination, its verdict, and its text."""

    computed = ("verdict", "summary", "broken")

    def raise_if_failed(self) -> None:
        """For your own tests.

        Raises:
            FaultError: the first fault, in one sentence, and how many more there are.
            DataError: something that was requested could not be examined, so that nothing is known about it.
        """
        failed = [finding for finding in self.findings if finding.status == "fail"]
        if failed:
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            raise FaultError(failed[0].sentence + more)
        if self.exit_code:
            raise DataError(self.summary)

    @property
    def summary(self) -> str:
        """The verdict in one line: of what, what it is, and what it rests on."""
        faults = sum(finding.status == "fail" for finding in self.findings)
        warnings = len(self.findings) - faults
        counts = [counted(faults, "fault") if faults else "", counted(warnings, "warning") if warnings else ""]
        verdict = {
            "unknown": "could not be judged",
            "partial": "was examined in part, and no fault was found there",
        }.get(self.verdict, f"is {self.verdict}")
        summed = f": {', '.join(filter(None, counts))}" if self.findings else ""
        return f"{self.target} {verdict}{summed}{self._gaps()}{self._kind()} ({round(self.seconds, 3):.2f} s)"

    def _gaps(self) -> str:
        """What the verdict does not cover, though a reader would expect it to."""
        late = sum(check.is_late for check in self.checks)
        waived = sum(check.status == "waived" for check in self.checks)
        blocked = sum(check.status == "blocked" for check in self.checks)
        gaps = {
            f"only {_listed(self.only)} {'was' if len(self.only) == 1 else 'were'} looked for": self.only,
            f"{counted(len(self.broken), 'check')} {BROKE}": self.broken,
            f"{OUT_OF_TIME} for {counted(late, 'check')}": late,
            f"{counted(waived, 'check')} waived": waived,
            f"{counted(blocked, 'check')} blocked by a waived one": blocked and self.verdict != "faulty",
            f"{_listed(self.open_words)} could not be judged": self.open_words and self.verdict == "partial",
        }
        return "".join(f"; {gap}" for gap, applies in gaps.items() if applies)

    def _kind(self) -> str:
        """The kind; where it was assumed, the weightiest reason, and how to declare another."""
        assumed = next((assumption for assumption in self.assumptions if assumption.about == "kind"), None)
        if assumed is None:
            return f" ({self.kind})"
        reason = assumed.reasons[0] if assumed.reasons else "nothing speaks against it"
        return f"; assumed to be {self.kind} because {reason}: {assumed.otherwise or '--kind declares another'}"

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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _listing(label: str, checks: Sequence[Checked]) -> Iterator[Line]:
    """Names of checks, those with the same note together."""
    names: dict[str, list[str]] = {}
    for check in checks:
        names.setdefault(check.note, []).append(check.name)
    parts = [", ".join(alike) + (f" ({note})" if note else "") for note, alike in names.items()]
    if parts:
        yield labelled(label, ", ".join(parts)), ""
