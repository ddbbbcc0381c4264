"""What happens in a training loop, in order. Writing it down changes nothing in it, and no error there stops it."""

import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.probes.tracing import caller
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Where
from clearhead.doctor.training.gradient_log import GradientLog, Use

MAX_STEPS = 8  # steps, after which nothing more is written down

Function = Callable[..., Any]


def called(op: str) -> Where:
    """The line of the training loop that makes this call."""
    file, line = caller()
    return Where(file=file, line=line, op=op)


@dataclass(frozen=True)
class Embedded:
    """Tokens that an embedding read, and how many it knows."""

    module: nn.Module
    ids: Tensor  # (B, T)
    vocab_size: int
    padding_id: int | None


@dataclass(eq=False)
class ForwardOutput:
    """A tensor that a model returned, and the gradient that a loss sent into it."""

    path: tuple[str | int, ...]
    tensor: Tensor
    version: int  # a tensor that was changed in place since is not what the loss read
    gradient: Tensor | None = None
    is_used: bool = False  # whether a loss ever sent a gradient


@dataclass(eq=False)
class Forward:
    """An outermost call of a module that has parameters."""

    module: nn.Module
    training: bool
    with_gradient: bool
    where: Where
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    embedded: list[Embedded] = field(default_factory=list)
    outputs: list[ForwardOutput] = field(default_factory=list)
    changed_inputs: bool = False
    dropouts: Mapping[str, bool] = field(default_factory=dict)  # those with p > 0: whether they drop
    batch: tuple[Tensor, ...] = ()  # samples of the tensors that it was called with


@dataclass(eq=False)
class Backward:
    """A gradient computed by `backward`."""

    loss: float
    has_graph: bool
    scale: float  # of a gradient scaler; 1 without one
    forwards: list[Forward]  # those since the backward before
    where: Where
    in_step: bool  # called by a closure
    xrays: list[Any] = field(default_factory=list)  # a `logits.LogitsXray` for each of those forwards with logits
    reached: int = 0  # parameters
    cleared: int = 0  # gradients that were cleared before it and that no step had used


@dataclass(frozen=True, eq=False)
class Clip:
    """A call that clips gradients."""

    limit: float
    parameters: frozenset[Tensor]
    gradients: int  # how many of the parameters have one
    size: float  # of the gradients, before: their norm, or the largest number
    by_norm: bool
    where: Where


@dataclass(frozen=True, eq=False)
class Scaled:
    """`GradScaler.scale`, `unscale_`, `step` or `update`, by its name."""

    method: str
    scale: float
    where: Where


@dataclass(frozen=True)
class Move:
    """What one step did to one parameter; norms are those of its sample."""

    rate: float  # of its group
    length: float  # norm before
    change: float  # norm of the difference
    has_gradient: bool
    lost: float  # share of the numbers with a gradient that did not change
    can_move: bool  # the rate times the gradient exceeds the spacing of floating-point numbers
    learns: bool  # requires_grad

    @property
    def is_pushed(self) -> bool:
        """Whether it should have changed."""
        return self.has_gradient and self.rate > 0


@dataclass(eq=False)
class OptimizerStep:
    """An update of the weights: by an optimizer of torch, by anything else with a `step`, or by hand."""

    optimizer: int  # id; 0 by hand
    name: str
    rates: tuple[float, ...]
    where: Where
    parameters: tuple[nn.Parameter, ...] = ()
    number: int = 0  # from 1, when it is written down
    uses: list[Use] = field(default_factory=list)
    moves: dict[nn.Parameter, Move] = field(default_factory=dict)
    groups: frozenset[int] = frozenset()  # ids of the parameter groups
    with_closure: bool = False
    has_state: bool = False  # such as moments

    @property
    def moved(self) -> bool:
        """Whether any weight changed."""
        return any(move.change > 0 for move in self.moves.values())


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A call of a scheduler's `step`. `batches`: of the longest DataLoader there is, at the scheduler's first call."""

    scheduler: int
    name: str
    groups: frozenset[int]  # whose rates it sets
    before: tuple[float, ...]
    after: tuple[float, ...]
    fresh: bool  # its optimizer had never stepped
    where: Where
    batches: int = 0


@dataclass(frozen=True, eq=False)
class Created:
    """A new optimizer."""

    optimizer: int
    name: str
    parameters: frozenset[Tensor]
    where: Where


Event = Forward | Backward | Clip | Scaled | OptimizerStep | Scheduled | Created


def rates_of(optimizer: object) -> tuple[float, ...]:
    """The learning rate of every group."""
    groups = getattr(optimizer, "param_groups", ())
    return tuple(float(group["lr"]) for group in groups if isinstance(group.get("lr"), (int, float, torch.Tensor)))


def groups_of(optimizer: object) -> frozenset[int]:
    """The ids of its groups; an optimizer that wraps another one has the same."""
    return frozenset(id(group) for group in getattr(optimizer, "param_groups", ()))


def parameters_held(optimizer: object) -> tuple[nn.Parameter, ...]:
    """Everything that an optimizer may move; also of one that is not torch's, if it has `parameters`."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is not None:
        return tuple(parameter for group in groups for parameter in group["params"])
    held = getattr(optimizer, "parameters", ())
    held = held() if callable(held) else held
    return tuple(held.values() if isinstance(held, Mapping) else held)


@dataclass(eq=False)
class EventLog:
    """The timeline, the log of gradients, and the errors of the writers."""

    timeline: list[Event] = field(default_factory=list)
    gradients: GradientLog = field(default_factory=GradientLog)
    problems: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)  # what could not be tried on the model again, for the report
    paused: bool = False
    with_gradient: bool = True  # whether the loop computes gradients at this moment
    in_step: bool = False
    kept: list[object] = field(default_factory=list)  # optimizers and schedulers, so that no other object gets their id

    @property
    def steps(self) -> list[OptimizerStep]:
        """Those so far."""
        return [event for event in self.timeline if isinstance(event, OptimizerStep)]

    @property
    def is_full(self) -> bool:
        """Whether enough was written down."""
        return len(self.steps) >= MAX_STEPS

    def write(self, event: Event) -> None:
        """Append an event, unless enough was written down."""
        if not self.is_full:
            if isinstance(event, OptimizerStep):
                event.number = len(self.steps) + 1
            self.timeline.append(event)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Nothing is written down meanwhile."""
        paused, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = paused

    def quiet(self, listener: Function) -> Function:
        """A listener whose errors go into the report, while the training goes on."""

        def called(*args: object, **kwargs: object) -> Any:
            if self.paused or torch.compiler.is_compiling():
                return None
            self.with_gradient = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            with attempt() as attempted, torch.no_grad():
                return listener(*args, **kwargs)
            self.problems.append(f"{getattr(listener, 'func', listener).__name__}: {attempted.sentence(120)}")
            return None

        return called

    def heard(self, old: Function, before: Function | None = None, after: Function | None = None) -> Function:
        """`old` between two listeners, which get its arguments; what `before` returns takes the place of these."""
        begin, end = (None if listener is None else self.quiet(listener) for listener in (before, after))

        @functools.wraps(old)
        def called(*args: object, **kwargs: object) -> Any:
            replaced = begin(*args, **kwargs) if begin else None
            try:
                args, kwargs = replaced or (args, kwargs)
                return old(*args, **kwargs)
            finally:
                if end:
                    end(*args, **kwargs)

        return called


def every(kind: type) -> list[Any]:
    """All objects of a class and its subclasses; it searches everything."""
    return [held for held in gc.get_objects() if issubclass(type(held), kind)]
