"""Products of tensors as attention uses them: which axis of the weights is summed over, and what scores are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clearhead.doctor.probes.flow import Flow, factor, made_by, read_by
from clearhead.doctor.probes.tracing import ModuleCall, is_weight

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"}
LINEAR = {"linear", "addmm", "conv1d"}
KEEPING = {
    "dropout", "dropout_", "to", "float", "type", "type_as", "half", "bfloat16", "contiguous", "clone", "masked_fill",
    "masked_fill_", "mul", "__mul__", "mul_", "__imul__", "__rmul__", "where", "nan_to_num", "__getitem__", "detach",
}  # fmt: skip
RESHAPING = {"view", "reshape", "flatten", "unflatten", "expand", "_unsafe_view"}
CARRYING = KEEPING | RESHAPING | {"transpose", "swapaxes", "permute", "t", "__get__"}  # the same numbers, or a part
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
            call = flow.calls[reader]
            weights = next((t for t in read_by(call) if any(t is output for output in made_by(flow.calls[at]))), None)
            if weights is None:
                continue
            if call.name in PRODUCTS and (product := _axes_in(call, reader, weights, axes)) is not None:
                return product
            if (after := _axes_after(call, weights, axes)) is not None:
                open_.append((reader, after))
    return None


def _axes_after(call: ModuleCall, weights: Tensor, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which axes of the first weights the axes of an operation's result are; None where they cannot be told."""
    outputs = made_by(call)
    if len(outputs) != 1:
        return None
    result, args = outputs[0], call.options["args"]
    if call.name in KEEPING and (result.shape == weights.shape or call.name == "__getitem__"):
        return axes if result.dim() == weights.dim() else None
    if call.name in ("transpose", "swapaxes", "swapdims") and len(args) == 3:
        order = list(axes)
        first, second = int(args[1]) % len(order), int(args[2]) % len(order)
        order[first], order[second] = order[second], order[first]
        return tuple(order)
    if call.name == "einsum":
        return _letters_after(call, weights, axes)
    if call.name == "permute":
        order_of_axes = args[1] if isinstance(args[1], Sequence) else args[1:]
        return tuple(axes[int(axis)] for axis in order_of_axes)
    if call.name == "__get__" and result.shape == weights.mT.shape:
        return (*axes[:-2], axes[-1], axes[-2])
    if call.name in RESHAPING and result.shape[-2:] == weights.shape[-2:] and result.dim() >= 2:
        return (*(-1,) * (result.dim() - 2), axes[-2], axes[-1])  # rows and heads were joined or parted
    return None


def _axes_in(call: ModuleCall, index: int, weights: Tensor, axes: tuple[int, ...]) -> Product | None:
    both = operands(call)
    if both is None:
        return None
    is_first = both[0] is weights
    pair = axes_of_weights(call, weights, is_first)
    if pair is None or min(axes[pair[0]], axes[pair[1]]) < 0:
        return None
    return Product(index, call, *both, kept=axes[pair[0]], summed=axes[pair[1]], other=both[is_first])


def axes_of_weights(call: ModuleCall, weights: Tensor, is_first: bool) -> tuple[int, int] | None:
    """The axes of the weights that a product keeps and sums over. `is_first`: whether they are its first tensor."""
    if call.name == "einsum":
        return _in_einsum(call, weights, is_first)
    last = weights.dim() - 1
    return (last - 1, last) if is_first else (last, last - 1)


def einsum_letters(call: ModuleCall) -> tuple[str, str, str] | None:
    """The axes of the two tensors of an einsum and of its result, by their letters; None if it is written otherwise."""
    equation = call.options["args"][0]
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    first, _, second = inputs.partition(",")
    return first, second, output


def _in_einsum(call: ModuleCall, weights: Tensor, is_first: bool) -> tuple[int, int] | None:
    """The axis of the weights that an einsum keeps, and the one that it sums over with the other tensor."""
    letters = einsum_letters(call)
    if letters is None:
        return None
    ours, other = letters[:2] if is_first else letters[1::-1]
    output = letters[2]
    summed = [letter for letter in ours if letter in other and letter not in output]
    kept = [letter for letter in ours if letter in output and letter not in other]
    rows = [letter for letter in ours if letter in other and letter in output]  # a map that mixes heads has none
    if len(summed) != 1 or not kept or not rows or len(ours) != weights.dim():
        return None
    # heads that share one value are kept as well: the queries are as many as the keys, or stand last
    alike = [letter for letter in kept if weights.shape[ours.index(letter)] == weights.shape[ours.index(summed[0])]]
    return ours.index((alike or kept)[-1]), ours.index(summed[0])


def _letters_after(call: ModuleCall, weights: Tensor, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which axes of the first weights the axes of an einsum's result are; -1 for heads that it mixes."""
    letters, both = einsum_letters(call), operands(call)
    if letters is None or both is None:
        return None
    ours = letters[0 if both[0] is weights else 1]
    return tuple(axes[ours.index(x)] if x in ours else -1 for x in letters[2]) if len(ours) == len(axes) else None


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


def is_map(call: ModuleCall) -> bool:
    """Whether an operation is a map of its own, or a product with a weight."""
    return call.name in LINEAR or (call.name in PRODUCTS and any(map(is_weight, read_by(call))))


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
        branch = flow.way_back(part, index, is_map)
        if not branch or any(flow.calls[at].name in NORMS for at in branch):
            return None
        scale *= factor_along(flow, branch[:-1])
    return scale
