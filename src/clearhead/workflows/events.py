"""The events of a workflow, beside those of the training loop."""

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from clearhead.data import GrammarScore
from clearhead.inspection import Curve
from clearhead.training import Evaluated, Stepped
from clearhead.training import Notice as Notice
from clearhead.workflows.utilization import Utilization


@dataclass(frozen=True)
class CheckPassed:
    """A check that was made and found nothing wrong, in a line."""

    text: str


@dataclass(frozen=True)
class Preparing:
    """The data is being prepared, and this share of it is done."""

    share: float


@dataclass(frozen=True)
class Started:
    """Training begins, or goes on, after `step` of `steps` steps; `floor` is the lowest loss possible, if known.

    `bytes_per_token` turns nats per token into bits per byte, where the loss is that of a whole text; `utilization`
    says of tokens and seconds how well they use the devices.
    """

    folder: Path
    step: int
    steps: int
    floor: float | None
    bytes_per_token: float | None = None
    utilization: Utilization | None = None


@dataclass(frozen=True)
class Replanned:
    """The machine is slower or faster than measured: training takes this many steps in all, to keep to its time."""

    steps: int


@dataclass(frozen=True)
class Sampled:
    """What the model writes after `step` steps, and figures about it by name (a translator's BLEU)."""

    step: int
    text: str
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class WeightsAveraged:
    """The held-out loss of the mean of the last checkpoints; it is the run's model where no single one's is lower."""

    step: int
    loss: float
    checkpoints: int
    used: bool


@dataclass(frozen=True)
class Read:
    """What the corpus's grammar says of samples of the run's model, after all its steps."""

    step: int
    score: GrammarScore


@dataclass(frozen=True)
class Finished:
    """Training is over: the curve, a sentence on where it ended, and what a person may want next."""

    folder: Path
    curve: Curve
    verdict: str
    commands: tuple[str, ...] = ()


WorkflowEvent = (
    Notice
    | CheckPassed
    | Preparing
    | Started
    | Replanned
    | Stepped
    | Evaluated
    | Sampled
    | WeightsAveraged
    | Read
    | Finished
)
Observer = Callable[[WorkflowEvent], None]


def command(verb: str, folder: Path, *arguments: str) -> str:
    """What a person may type next, ready to be pasted into a shell, whatever the arguments hold."""
    typed = [str(folder), *arguments]
    return f"clearhead {verb} {subprocess.list2cmdline(typed) if os.name == 'nt' else shlex.join(typed)}"


def ignore(event: WorkflowEvent) -> None:
    """An observer that ignores all events."""
