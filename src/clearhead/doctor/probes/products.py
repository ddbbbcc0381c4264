"""Products of tensors as attention uses them: which axis of the weights is summed over, and what scores are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from clearhead.doctor.probes.flow import Flow, factor, made_by, read_by
from clearhead.doctor.probes.tracing import ModuleCall, quiet
from clearhead.doctor.problems import attempt

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"}
LINEAR = {"linear", "addmm", "conv1d"}
KEEPING = {
    "dropout", "dropout_", "to", "float", "type", "type_as", "half", "bfloat16", "contiguous", "clone", "masked_fill",
    "masked_fill_", "mul", "__mul__", "mul_", "__imul__", "__rmul__", "where", "nan_to_num", "__getitem__", "detach",
}  # fmt: skip
RESHAPING = {"view", "reshape", "flatten", "unflatten", "expand", "_unsafe_view"}
NORMS = {"layer_norm", "rms_norm", "rsqrt", "normalize", "group_norm", "norm", "vector_norm"}


@dataclass(frozen=True)
class Product:
    """A product of two tensors. For a product with weights: the axes of the weights that it keeps and sums over.

    Args:
        index: of its operation.
        kept: the axis of the queries.
        summed: the axis that is summed over.
        first, second: its two tensors, the very ones.
        other: of those, the one that is not the weights.
    """

    index: int
    call: ModuleCall
    first: Tensor
    second: Tensor
    kept: int = -2
    summed: int = -1
    other: Tensor | None = None


def operands(call: ModuleCall) -> tuple[Tensor, Tensor] | None:
    """The two tensors that are multiplied."""
    parts = [part for part in read_by(call) if part.is_floating_point()]
    if call.name == "baddbmm":
        parts = parts[1:]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def product_of(flow: Flow, index: int) -> Product | None:
    """The product in which the weights that an operation made are used, and along which axes."""
    start = made_by(flow.calls[index])[0]
    open_: list[tuple[int, tuple[int, ...]]] = [(index, tuple(range(start.dim())))]
    for _ in range(12):
        if not open_:
            break
        at, axes = open_.pop(0)
        for reader in flow.readers(at):
            call, outputs = flow.calls[reader], made_by(flow.calls[reader])
            weights = next((t for t in read_by(call) if any(t is output for output in made_by(flow.calls[at]))), None)
            if weights is None or len(outputs) != 1 or not outputs[0].is_floating_point():
                continue
            through = axes_through(call, weights)
            if call.name in PRODUCTS and (product := _axes_in(call, reader, weights, through, axes)) is not None:
                return product
            after = [axes[through.index(axis)] if axis in through else -1 for axis in range(outputs[0].dim())]
            if sum(axis >= 0 for axis in after) >= 2:
                open_.append((reader, tuple(after)))
    return None


def axes_through(call: ModuleCall, tensor: Tensor) -> list[int]:
    """Which axis of its result each axis of a tensor becomes when an operation reads it; -1 for none, and if unclear.

    The operation is made again with other numbers everywhere. What changes at the first index of an axis must then
    change the result at the first index of an axis too, and nowhere else: no axis needs to be read from its arguments.
    """
    read = (part for part in read_by(call) if part.is_floating_point())
    numbers = {id(part): torch.linspace(1, 2, part.numel()).view(part.shape).to(part) for part in read}

    def result(raised: int | None = None) -> Tensor:
        drawn = {key: values.clone() for key, values in numbers.items()}
        if raised is not None:
            drawn[id(tensor)].select(raised, 0).add_(1)
        args, kwargs = tree_map(lambda part: drawn.get(id(part), part), (call.options["args"], call.options["kwargs"]))
        output: Tensor = call.options["func"](*args, **kwargs)
        return output

    with attempt(), quiet():  # some operations cannot be made again, as inside a vectorized map
        before = result()
        return [_only_axis(result(axis) != before) for axis in range(tensor.dim())]
    return [-1] * tensor.dim()


def _only_axis(changed: Tensor) -> int:
    """The axis with changes at its first index only; -1 if there is none, or more than one."""
    lines = [changed.movedim(axis, 0).flatten(1).any(1) for axis in range(changed.dim()) if changed.dim() > 1]
    axes = [axis for axis, line in enumerate(lines) if line[0] and len(line) > 1 and not line[1:].any()]
    return axes[0] if len(axes) == 1 else -1


def _axes_in(
    call: ModuleCall, index: int, weights: Tensor, through: Sequence[int], axes: tuple[int, ...]
) -> Product | None:
    """The axis that a product sums over does not come through it; that of the queries does, and from the weights alone.

    Args:
        through: axes of the weights -> of the product.
        axes: axes of the weights -> of what they were made as.
    """
    both = operands(call)
    if both is None:
        return None
    other = both[both[0] is weights]
    if other.dim() < min(3, weights.dim()):  # a map that mixes heads
        return None
    shared = axes_through(call, other)
    summed = [axis for axis, to in enumerate(through) if to < 0 and weights.shape[axis] > 1]
    kept = [axis for axis, to in enumerate(through) if to >= 0 and to not in shared]
    if len(summed) != 1 or not kept or axes[summed[0]] < 0:
        return None
    # heads that share one value are kept as well: the queries are as many as the keys, or stand last
    alike = [axis for axis in kept if weights.shape[axis] == weights.shape[summed[0]]]
    query = axes[(alike or kept)[-1]]
    return None if query < 0 else Product(index, call, *both, kept=query, summed=axes[summed[0]], other=other)


def product_behind(flow: Flow, index: int) -> Product | None:
    """The product of queries and keys that a softmax's scores are made of."""
    call = flow.calls[index]
    source = next((t for t in read_by(call) if t.is_floating_point()), None)
    if source is None:
        return None

    def is_product(call: ModuleCall) -> bool:
        output = made_by(call)
        return call.name in PRODUCTS and len(output) == 1 and output[0].dim() >= 3 and operands(call) is not None

    branch = flow.way_back(source, index, is_product, limit=14)
    if not branch:
        return None
    both = operands(flow.calls[branch[-1]])
    assert both is not None
    return Product(branch[-1], flow.calls[branch[-1]], *both)


def factor_along(flow: Flow, branch: Sequence[int]) -> float:
    """What a tensor was multiplied by on the way, as far as that was by plain numbers."""
    total = 1.0
    for index in branch:
        total *= factor(flow.calls[index])
        alpha: Any = flow.calls[index].options["kwargs"].get("alpha")
        if flow.calls[index].name == "baddbmm" and alpha is not None:
            total *= float(alpha)
    return total


def scale_between(flow: Flow, index: int, both: tuple[Tensor, Tensor]) -> float | None:
    """What two projections were multiplied by before an operation; None if either was normalized, or is none."""
    scale = 1.0
    for part in both:
        branch = flow.way_back(part, index, lambda call: call.name in LINEAR)
        if not branch or any(flow.calls[at].name in NORMS for at in branch):
            return None
        scale *= factor_along(flow, branch[:-1])
    return scale
