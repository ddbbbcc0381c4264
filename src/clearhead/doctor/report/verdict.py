"""What an examination came to: each check, every finding, the verdict, and the answer about each fault.

Imports no torch.
"""

from dataclasses import dataclass
from typing import Literal

from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.records import ReadableRecord
from clearhead.doctor.spec import Assumption
from clearhead.errors import DataError, FaultError

Outcome = Literal["pass", "fail", "warn", "skip", "waived", "blocked"]
Verdict = Literal["healthy", "faulty", "partial", "unknown"]
Answer = Literal["yes", "no", "unknown"]
BROKE = "could not be made"  # how the note of a check that raised begins
OUT_OF_TIME = "no time was left"
JUDGED = ("pass", "warn", "fail", "waived")  # outcomes of checks that came to an answer
WATCHED = "a model alone does not show it; 'clearhead doctor train SCRIPT' watches a training"


@dataclass(frozen=True)
class Checked:
    """One check, its outcome, and how many milliseconds it took.

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
        """It raised, through a mistake of the doctor or a call that the model does not take: nothing was learned."""
        return self.status == "skip" and self.note.startswith(BROKE)

    @property
    def is_late(self) -> bool:
        """No time was left for it."""
        return self.status == "skip" and self.note == OUT_OF_TIME

    @property
    def is_missing(self) -> bool:
        """It should have been made and was not: it raised, no time was left, or another check blocked it."""
        return self.broke or self.is_late or self.status == "blocked"


@dataclass(frozen=True, repr=False)
class Examined(ReadableRecord):
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
        for finding in self.findings:
            if finding.id == id:
                suffix = f", in {finding.where.place}" if finding.where.place else ""
                return "yes", f"{finding.evidence.witness}{suffix}"
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
        fault = next((finding for finding in self.findings if finding.status == "fail"), None)
        if fault is not None:
            witness = f"it was looked for and not found, but {fault.id} was, and may hide it; fix that and ask again"
            return "unknown", witness
        later = sorted({check.note for check in able if check.note.startswith("at --level")})
        return "no", "; ".join(check.holds for check in passed) + (f"; more is examined {later[0]}" if later else "")

    def _reason(self, check: Checked) -> str:
        """Why a check does not answer a question."""
        if check.status not in ("fail", "warn"):
            return check.note
        instead = " and ".join(dict.fromkeys(finding.id for finding in self.of_check(check.name)))
        return f"'{check.name}' found {instead or 'a fault'}"
