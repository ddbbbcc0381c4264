"""The residual stream: the additions that a hidden state passes on its way to the logits, and what is between."""

from dataclasses import dataclass
from itertools import permutations

from torch import Tensor

from clearhead.doctor.probes.flow import Flow, read_by
from clearhead.doctor.probes.tracing import ModuleCall

SUMS = {"add", "add_", "__add__", "__radd__", "__iadd__"}


@dataclass(frozen=True)
class Addition:
    """One addition of a branch to the stream.

    Args:
        index, call: the operation.
        skip: what the branch was added to, the very tensor.
        between: operations from there back to the addition before, both excluded.
        is_first: there is none before.
    """

    index: int
    call: ModuleCall
    skip: Tensor
    between: tuple[int, ...]
    is_first: bool


def residuals(flow: Flow) -> dict[int, Tensor]:
    """Every addition of which one of the two tensors was made from the other, and that other."""
    return {index: skip for index, call in enumerate(flow.calls) if (skip := _skip(flow, index, call)) is not None}


def stream(flow: Flow, additions: dict[int, Tensor], end: Tensor) -> tuple[list[Addition], tuple[int, ...]]:
    """The additions in order, and the operations between the last one and the end, backwards.

    One belongs to the stream if a later one, or the end, goes back to it without entering a branch.
    """
    calls = flow.calls
    if not additions:
        return [], ()

    def is_addition(call: ModuleCall) -> bool:
        return id(call) in numbers

    numbers = {id(calls[index]): index for index in additions}
    branch = flow.way_back(end, len(calls), is_addition)
    behind, steps = tuple(branch[:-1]), []
    while branch:
        index = branch[-1]
        skip = additions[index]
        branch = flow.way_back(skip, index, is_addition)
        steps.append(Addition(index, calls[index], skip, tuple(branch[:-1]), not branch))
    return steps[::-1], behind


def _skip(flow: Flow, index: int, call: ModuleCall) -> Tensor | None:
    """Of the two tensors that are added, the one that the other was made from, be it before a dropout."""
    pairs = permutations(addends(call), 2)
    return next((skip for skip, branch in pairs if flow.comes_from(branch, index, _undropped(flow, skip, index))), None)


def _undropped(flow: Flow, tensor: Tensor, before: int) -> Tensor:
    """What a dropout was given that made a tensor; the tensor itself where none did."""
    maker = flow.maker(tensor, before)
    if maker is None or "dropout" not in flow.calls[maker].name:  # which in evaluation only hands on
        return tensor
    return read_by(flow.calls[maker])[0]


def addends(call: ModuleCall) -> list[Tensor]:
    """The two hidden states that an operation adds; empty if it does not."""
    parts = [part for part in call.options["args"] if isinstance(part, Tensor)]
    if call.name not in SUMS or len(parts) != 2 or parts[0].dim() < 3 or parts[0].shape != parts[1].shape:
        return []
    return parts if parts[0].is_floating_point() and parts[0] is not parts[1] else []
