"""What a check came to, and what may be concluded from all of them. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["pass", "fail", "warn", "skip", "waived", "blocked"]
Verdict = Literal["healthy", "faulty", "partial", "unknown"]
Answer = Literal["yes", "no", "unknown"]
BROKE = "could not be made"  # how the note of a check that raised begins
OUT_OF_TIME = "no time was left"
JUDGED = ("pass", "warn", "fail", "waived")  # outcomes of checks that came to an answer
WATCHED = "a model alone does not show it; 'clearhead doctor train SCRIPT' watches a training"


@dataclass(frozen=True)
class Checked:
    """One check, its outcome, and how many milliseconds it took."""

    id: str
    name: str
    covers: tuple[str, ...]  # every id that it can find
    holds: str  # what is true if it passed
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
