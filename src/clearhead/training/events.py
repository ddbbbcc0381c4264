"""The events of the training loop: all that a console, a log or a checkpoint writer needs, and no more."""

from dataclasses import dataclass


@dataclass
class TrainingState:
    """The progress of a training. With the weights and the optimizer's moments it is all that a resume needs."""

    step: int = 0  # steps completed
    tokens: int = 0  # tokens counted in the loss so far
    skipped: int = 0  # steps whose loss or gradient was not finite
    best_loss: float | None = None  # on the held-out text, nats per token
    best_step: int | None = None
    first_loss: float | None = None  # of the first step whose loss and gradient were finite


@dataclass(frozen=True)
class Stepped:
    """A step is done: `step` counts from 1, `loss` is in nats per token, `gradient_norm` is taken before clipping."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens: int
    seconds: float
    skipped: bool


@dataclass(frozen=True)
class Evaluated:
    """The loss on the held-out text after `step` steps, in nats per token over `tokens` tokens."""

    step: int
    loss: float
    tokens: int
    best: bool


@dataclass(frozen=True)
class SaveDue:
    """Save now: weights, optimizer and `state` belong together, and are good. `best`: no held-out loss was lower."""

    state: TrainingState
    best: bool


@dataclass(frozen=True)
class Notice:
    """A sentence for the user: a choice and its reason, or something that went differently than planned."""

    text: str
    step: int | None = None  # of a training that is running


Event = Stepped | Evaluated | SaveDue | Notice
