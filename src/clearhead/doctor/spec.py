"""What a model is meant to be: said by the person, or read from the model and then told as an assumption."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from clearhead.doctor.problems import attempt

Kind = Literal["causal", "bidirectional", "seq2seq"]
Level = Literal["quick", "standard", "deep"]
KINDS: tuple[Kind, ...] = ("causal", "bidirectional", "seq2seq")
LEVELS: tuple[Level, ...] = ("quick", "standard", "deep")


@dataclass(frozen=True)
class Spec:
    """What is declared of a model. What is left at None is read from the model; what contradicts the rest is a finding.

    Args:
        kind: causal predicts the next token, bidirectional sees both sides, seq2seq reads a source and writes a target.
        window: how many tokens, the last one its own, a token sees.
        tied: whether embedding and head share their weights.
        pad_id: the token that fills up short rows.
        time_first: whether tensors are (T, B) and (T, B, V).
        fresh: whether the weights are newly drawn, so that the loss must be near ln V; trained ones have any loss. What
            the weights do not show by themselves is not asked of them.
        allow: id of a check -> why its finding is no fault here. It is reported as waived, with the reason.
    """

    kind: Kind | None = None
    window: int | None = None
    tied: bool | None = None
    pad_id: int | None = None
    time_first: bool | None = None
    fresh: bool | None = None
    allow: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Assumption:
    """Something that nobody said and the verdict rests on, with what speaks for it."""

    about: str
    value: str
    reasons: tuple[str, ...]
    otherwise: str = ""  # what the verdict would be under the other reading

    @property
    def sentence(self) -> str:
        """The assumption, why, and what else could be."""
        otherwise = f"; {self.otherwise}" if self.otherwise else ""
        return f"{self.about}: {self.value} ({', '.join(self.reasons) or 'nothing speaks against it'}){otherwise}"


@dataclass(frozen=True)
class Journal:
    """What the checks ran and assumed, for the report. Checks add to it and never read it."""

    paths: list[str] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)

    def untried(self, path: str, attempted: attempt) -> None:
        """Note a path that raised, so that nothing is known about it."""
        self.paths.append(f"{path} (could not be run: {attempted.kind})")
