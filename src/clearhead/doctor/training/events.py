"""What happens in a training loop, in the order in which it happens."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.training.gradient_log import Use

Location = tuple[str | None, int | None]  # file and line of the code that called


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
    version: int  # of the tensor: what is changed in place afterwards is no longer what the loss saw
    gradient: Tensor | None = None
    is_used: bool = False  # whether a loss ever sent a gradient


@dataclass(eq=False)
class Forward:
    """An outermost call of a module that has parameters."""

    module: nn.Module
    training: bool
    with_gradient: bool
    location: Location
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    embedded: list[Embedded] = field(default_factory=list)
    outputs: list[ForwardOutput] = field(default_factory=list)
    changed_inputs: bool = False
    dropouts: Mapping[str, bool] = field(default_factory=dict)  # with p > 0: whether it drops
    batch: tuple[Tensor, ...] = ()  # readings of the tensors that it was given


@dataclass(eq=False)
class Backward:
    """A gradient computed by `backward`."""

    loss: float
    has_graph: bool
    scale: float  # by a gradient scaler; 1 without
    forwards: list[Forward]  # those since the one before
    location: Location
    xrays: list[Any] = field(default_factory=list)  # `logits.LogitsXray`: what it asked of the logits of those forwards
    reached: int = 0  # parameters
    cleared: int = 0  # gradients that were there before, and no step had used
    in_step: bool = False  # by a closure


@dataclass(frozen=True)
class Clip:
    """A call that bounds gradients."""

    limit: float
    parameters: frozenset[int]
    gradients: int  # how many of them had one
    size: float  # of them, before: the length, or the largest number
    by_norm: bool
    location: Location


@dataclass(frozen=True)
class Scaled:
    """`GradScaler.scale`, `unscale_`, `step` or `update`, by its name."""

    method: str
    scale: float
    location: Location
    stepped: bool = True  # of `step`: whether the optimizer's own was called


@dataclass(frozen=True)
class Move:
    """What one step did to one parameter; lengths are those of its reading."""

    rate: float  # of its group
    length: float  # before
    change: float
    has_gradient: bool
    lost: float  # share of the numbers with a gradient that stayed as they were
    can_move: bool  # the rate times the gradient is more than the last digit of the number
    learns: bool  # requires_grad


@dataclass(eq=False)
class OptimizerStep:
    """An update of the weights: by an optimizer of torch, by something else that has a `step`, or by hand."""

    optimizer: int  # id; 0 by hand
    name: str
    rates: tuple[float, ...]
    location: Location
    parameters: tuple[nn.Parameter, ...] = ()
    uses: list[Use] = field(default_factory=list)
    moves: dict[int, Move] = field(default_factory=dict)
    groups: frozenset[int] = frozenset()  # of parameters: the tables that hold their rates
    with_closure: bool = False
    remembers: bool = False  # it has moments

    @property
    def moved(self) -> bool:
        """Whether any weight changed."""
        return any(move.change > 0 for move in self.moves.values())


@dataclass(frozen=True)
class Scheduled:
    """A scheduler was told to go on."""

    scheduler: int
    name: str
    groups: frozenset[int]  # whose rates it sets
    before: tuple[float, ...]
    after: tuple[float, ...]
    fresh: bool  # its optimizer had never stepped
    location: Location


@dataclass(frozen=True)
class Created:
    """An optimizer was made."""

    optimizer: int
    name: str
    parameters: frozenset[int]
    location: Location


Event = Forward | Backward | Clip | Scaled | OptimizerStep | Scheduled | Created


def rates_of(optimizer: object) -> tuple[float, ...]:
    """The learning rate of every group."""
    groups = getattr(optimizer, "param_groups", ())
    return tuple(float(group["lr"]) for group in groups if isinstance(group.get("lr"), (int, float, torch.Tensor)))


def groups_of(optimizer: object) -> frozenset[int]:
    """The tables that hold its rates; an optimizer that wraps another one has the same."""
    return frozenset(id(group) for group in getattr(optimizer, "param_groups", ()))


def parameters_held(optimizer: object) -> tuple[nn.Parameter, ...]:
    """Everything that an optimizer may move; also of one that is none of torch's, if it says so."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is not None:
        return tuple(parameter for group in groups for parameter in group["params"])
    held = getattr(optimizer, "parameters", ())
    held = held() if callable(held) else held
    return tuple(held.values() if isinstance(held, Mapping) else held)
