"""What an examination came to: each check, all that was found, and the verdict. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from clearhead.doctor.report.findings import Finding
from clearhead.doctor.spec import Assumption
from clearhead.errors import DataError, FaultError

Outcome = Literal["pass", "fail", "warn", "skip", "waived", "blocked"]
Verdict = Literal["healthy", "faulty", "partial", "unknown"]
BROKE = "could not be made"  # how the note of a check that raised begins
OUT_OF_TIME = "no time was left"
JUDGED = ("pass", "warn", "fail", "waived")  # outcomes of checks that came to an answer


@dataclass(frozen=True)
class Checked:
    """One check, what it came to, and in how many milliseconds.

    `covers`: every id that it can find. `holds`: what is true if it passed.
    """

    id: str
    name: str
    covers: tuple[str, ...]
    holds: str
    status: Outcome
    note: str
    milliseconds: float

    def can_find(self, word: str) -> bool:
        """Whether it is the check of that name, or one that can find the fault of that id."""
        return word == self.name or word in self.covers

    @property
    def broke(self) -> bool:
        """It raised: a mistake of the doctor's, or a call that the model does not take. Nothing was learned."""
        return self.status == "skip" and self.note.startswith(BROKE)

    @property
    def is_late(self) -> bool:
        """No time was left for it."""
        return self.status == "skip" and self.note == OUT_OF_TIME

    @property
    def is_missing(self) -> bool:
        """It should have been made, and was not: it raised, no time was left, or another check stood in its way."""
        return self.broke or self.is_late or self.status == "blocked"


@dataclass(frozen=True)
class Examined:
    """An examination. It speaks of the paths, shapes and weights that were run, and of nothing else.

    `only`: the ids and names of checks that it was narrowed to; empty for a whole one.
    """

    target: str
    kind: str
    findings: tuple[Finding, ...]
    checks: tuple[Checked, ...]
    assumptions: tuple[Assumption, ...]
    paths: tuple[str, ...]
    seconds: float
    only: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """What may be concluded, and no more.

        Faulty if anything failed, whether it was asked for or met on the way. Unknown if nothing that was asked for
        could be judged, or causality, the first thing to know, could not. Healthy is said of a whole examination alone;
        partial means that nothing failed in the part that was examined.
        """
        if "fail" in {*(finding.status for finding in self.findings), *(check.status for check in self.checks)}:
            return "faulty"
        if self._unanswered or not self.checks:
            return "unknown"
        return "partial" if self.only or any(check.is_missing for check in self.checks) else "healthy"

    @property
    def _unanswered(self) -> list[Checked]:
        """Checks without which nothing can be concluded: that of causality, or all that were asked for."""
        candidates = [
            check for check in self.checks if not self.only or any(check.can_find(word) for word in self.only)
        ]
        unjudged = [check for check in candidates if check.status not in JUDGED]
        return [check for check in unjudged if check.name == "dependencies"] or unjudged * (
            len(unjudged) == len(candidates)
        )

    @property
    def unjudged(self) -> tuple[Checked, ...]:
        """Checks that should have answered and did not, so that the verdict is less than what was asked for.

        What a fault blocks is not among them: the fault is the answer, until it is mended.
        """
        excused = {"blocked"} if self.verdict == "faulty" else set()
        unanswered = [check for check in self.checks if any(check.can_find(word) for word in self.open_words)]
        unanswered += self._unanswered if self.verdict == "unknown" else []
        return tuple(
            check for check in self.checks if check.status not in excused and (check.is_missing or check in unanswered)
        )

    @property
    def open_words(self) -> tuple[str, ...]:
        """What was asked for and no check that can find it could judge."""
        judged = [check for check in self.checks if check.status in JUDGED]
        return tuple(word for word in self.only if not any(check.can_find(word) for check in judged))

    @property
    def exit_code(self) -> int:
        """Of the command: 4 for a fault, 3 where something that was asked for could not be examined, else 0."""
        if self.verdict == "faulty":
            return FaultError.exit_code
        return DataError.exit_code if self.verdict == "unknown" or self.unjudged else 0

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the checks that raised: the verdict does not speak of what they cover."""
        return tuple(check.name for check in self.checks if check.broke)

    def __getitem__(self, id: str) -> Finding:
        """The finding of that id.

        Raises:
            KeyError: there is none.
        """
        for finding in self.findings:
            if finding.id == id:
                return finding
        raise KeyError(id)

    def __contains__(self, id: object) -> bool:
        return any(finding.id == id for finding in self.findings)

    def of_check(self, name: str) -> tuple[Finding, ...]:
        """What that check found, and nothing before it had."""
        return tuple(finding for finding in self.findings if finding.check == name)
