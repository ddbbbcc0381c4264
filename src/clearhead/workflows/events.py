"""What a workflow tells whoever watches it, beside the training loop's own events."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clearhead.inspection import Curve
from clearhead.training import Evaluated, Stepped


@dataclass(frozen=True)
class Said:
    """A sentence for the person: a choice and its reason, a check that passed, something that went differently."""

    text: str


@dataclass(frozen=True)
class Started:
    """Training begins, or goes on, after `step` of `steps` steps; `floor` is the lowest loss possible, if known."""

    folder: Path
    step: int
    steps: int
    floor: float | None


@dataclass(frozen=True)
class Sampled:
    """What the model writes after `step` steps."""

    step: int
    text: str


@dataclass(frozen=True)
class Finished:
    """Training is over: the curve and a sentence on where it ended."""

    folder: Path
    curve: Curve
    verdict: str


WorkflowEvent = Said | Started | Stepped | Evaluated | Sampled | Finished
Observer = Callable[[WorkflowEvent], None]


def ignore(event: WorkflowEvent) -> None:
    """The observer who does not look."""
