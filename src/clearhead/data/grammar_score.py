"""What a corpus's grammar says of texts that a model wrote."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class GrammarScore:
    """How much of some sampled text the grammar accepts, in shares between 0 and 1; None where nothing was counted.

    Attributes:
        sentences: how many sentences were read.
        accepted_sentences: the share of them that the grammar can write.
        agreement: the share of words that agree with what they belong to. In stories: names, pronouns and all other
            words that refer back, in accepted sentences, and mean what the story introduced. In translations: noun
            phrases of which every word has one gender, number and case.
        stories: how many stories were read.
        accepted_stories: the share of them that the grammar can write from beginning to end.
        kept_names: the share of later mentions of a story's hero by name that keep the name.
    """

    sentences: int
    accepted_sentences: float | None
    agreement: float | None
    stories: int | None = None
    accepted_stories: float | None = None
    kept_names: float | None = None

    def shares(self) -> dict[str, float]:
        """The shares by name, without those of which nothing was counted."""
        names = ("accepted_sentences", "accepted_stories", "agreement", "kept_names")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def line(self) -> str:
        """The shares in one sentence."""
        clauses = [f"the corpus's grammar accepts {_share(self.accepted_sentences)} of {self.sentences:,} sentences"]
        clauses[0] += _interval(self.accepted_sentences, self.sentences)
        if self.stories is not None:
            clauses.append(f"{_share(self.accepted_stories)} of {self.stories:,} whole stories")
        if self.agreement is not None:
            clauses.append(f"agreement holds in {_share(self.agreement)} of the cases")
        if self.kept_names is not None:
            clauses.append(f"{_share(self.kept_names)} of the mentions of a hero keep the name")
        return "; ".join(clauses)


def share(part: int, whole: int) -> float | None:
    """The share that a part is of the whole; None of nothing."""
    return part / whole if whole else None


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _interval(value: float | None, n: int) -> str:
    """Where the share of all that the model could write lies, with 95% confidence (Wilson's interval)."""
    if value is None:
        return ""
    z = 1.96
    middle, half = value + z * z / (2 * n), z * math.sqrt(value * (1 - value) / n + z * z / (4 * n * n))
    low, high = (min(1.0, max(0.0, (middle + sign * half) / (1 + z * z / n))) for sign in (-1, 1))  # not -0%
    return f" (95% interval: {low:.0%} to {high:.0%})"
