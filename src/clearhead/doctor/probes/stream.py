"""The residual stream: the additions that a hidden state passes on its way to the logits, and what is between."""

from dataclasses import dataclass

from torch import Tensor

from clearhead.doctor.probes.flow import Flow
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


def stream(flow: Flow, end: Tensor) -> tuple[list[Addition], tuple[int, ...]]:
    """The additions in order, and the operations between the last one and the end, backwards.

    An addition belongs to the stream if one of its two tensors was made from the other, and if a later one, or the
    end, goes back to it without entering a branch.
    """
    calls = flow.calls
    additions = {index: skip for index, call in enumerate(calls) if (skip := _skip(flow, index, call)) is not None}
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
    """Of the two tensors that are added, the one that the other was made from."""
    parts = [part for part in call.options["args"] if isinstance(part, Tensor)]
    if call.name not in SUMS or len(parts) != 2 or parts[0].dim() < 3 or parts[0].shape != parts[1].shape:
        return None
    first, second = parts
    if not first.is_floating_point() or first is second:
        return None
    if flow.comes_from(second, index, first):
        return first
    return second if flow.comes_from(first, index, second) else None
