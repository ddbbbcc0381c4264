"""Weights under foreign names: the entries of a family's table, spelt out for one model and applied both ways."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearhead.config import ModelConfig
from clearhead.exchange.family import BIASED, Entry, Family
from clearhead.exchange.fixed import halves
from clearhead.models import build

Shape = tuple[int, ...]


class Link(NamedTuple):
    """One foreign tensor, the own tensors it is made of, and what was done to them.

    `stream` is the axis of the own tensors that lies along the residual stream, where the family orders that otherwise.
    """

    own: tuple[str, ...]
    shapes: tuple[Shape, ...]  # of the own tensors
    foreign: str
    transposed: bool = False
    stream: int | None = None

    @property
    def foreign_shape(self) -> Shape:
        """The shape that the foreign tensor must have."""
        stacked = (sum(shape[0] for shape in self.shapes), *self.shapes[0][1:])
        return stacked[::-1] if self.transposed else stacked


def links(family: Family | None, config: ModelConfig) -> list[Link]:
    """Every tensor of a file that holds such a model: in the family's names, or without a family in our own."""
    if family is None:
        return [Link((name,), (shape,), name) for name, shape in shapes(config).items()]
    there = shapes(config.model_copy(update=BIASED) if family.always_biased else config)
    found = [link for entry in family.entries for link in _spell_out(entry, there, family.halves)]
    linked = sorted(name for link in found for name in link.own)
    assert linked == sorted(there), f"{family.name}'s table does not hold every weight exactly once"
    return found


def shapes(config: ModelConfig) -> dict[str, Shape]:
    """The shapes of a model's weights, without taking memory for them or drawing a number."""
    with torch.device("meta"), _Undrawn():
        return {name: tuple(tensor.shape) for name, tensor in build(config).state_dict().items()}


class _Undrawn(TorchFunctionMode):
    """Initialisers leave a tensor as it is; on the meta device they would load torch's compiler, for seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


def to_foreign(link: Link, state: Mapping[str, Tensor]) -> Tensor:
    """The foreign tensor; a bias that we do not have is zero."""
    like = next(iter(state.values()))
    own = [
        state[name] if name in state else like.new_zeros(shape)
        for name, shape in zip(link.own, link.shapes, strict=True)
    ]
    stacked = torch.cat(own)  # (sum of rows, ...)
    if link.stream is not None:
        stacked = stacked.index_select(link.stream, halves(stacked.shape[link.stream]).to(stacked.device))
    return (stacked.T if link.transposed else stacked).contiguous()


def to_own(link: Link, foreign: Tensor) -> dict[str, Tensor]:
    """The reverse of `to_foreign`."""
    stacked = foreign.T if link.transposed else foreign
    if link.stream is not None:
        stacked = stacked.index_select(link.stream, halves(stacked.shape[link.stream]).argsort())
    parts = torch.split(stacked, [shape[0] for shape in link.shapes])
    return dict(zip(link.own, parts, strict=True))


def _spell_out(entry: Entry, there: Mapping[str, Shape], halved: bool) -> list[Link]:
    """The entry's links among the weights that are there, for every block and for weight and bias."""
    modules = (entry.own,) if isinstance(entry.own, str) else entry.own
    found = []
    for layer in count():
        block = []
        for kind in ("weight", "bias"):
            own = tuple(f"{module}.{kind}".replace(".N.", f".{layer}.") for module in modules)
            if own[0] in there:
                foreign = f"{entry.foreign}.{kind}".replace(".N.", f".{layer}.")
                transposed = entry.transposed and kind == "weight"
                stream = _stream_axis(own[0]) if halved else None
                assert stream != 0 or len(own) == 1, "the rows of several cannot lie along one residual stream"
                block.append(Link(own, tuple(there[name] for name in own), foreign, transposed, stream))
        found += block
        if not block or ".N." not in entry.foreign:
            return found
    raise AssertionError("unreachable")


def _stream_axis(name: str) -> int | None:
    """Which axis of an own tensor lies along the residual stream, if one does."""
    module, kind = name.split(".")[-2:]
    if module in ("norm", "output", "down"):
        return 0  # what is normalised, or written
    if module in ("query_norm", "key_norm") or kind == "bias":
        return None  # inside of a part
    return 1  # rows of a table, and what a map reads
