"""Small questions about tensors that many probes and checks ask."""

from collections.abc import Sequence

import torch
from torch import Tensor


def axis_of(tensor: Tensor | None, n: int) -> int | None:
    """The axis of size n; None if there is none, or more than one."""
    axes = [] if tensor is None else [axis for axis, size in enumerate(tensor.shape) if size == n]
    return axes[0] if len(axes) == 1 else None


def first_true(mask: Tensor) -> tuple[int, ...]:
    """The index of the first True."""
    return tuple(int(part) for part in mask.nonzero()[0])


def is_same(first: Tensor | None, second: Tensor | None) -> bool:
    """Whether two tensors hold the same numbers, to the last bit."""
    if first is None or second is None or (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    return torch.equal(first, second)


def are_same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """The same for lists of tensors."""
    return len(first) == len(second) and all(map(is_same, first, second))


def change_of(before: Tensor, after: Tensor) -> float:
    """The largest change of a number, relative to the standard deviation of all numbers before."""
    return float((after - before).abs().max()) / (float(before.std()) or 1.0)


def relative_change(before: Tensor, after: Tensor) -> float:
    """The largest change of a number, relative to the largest number before."""
    return float((after - before).abs().max()) / (float(before.abs().max()) or 1.0)
