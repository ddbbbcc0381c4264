"""Whether a view or a reshape keeps tokens together, by sending the tokens' own numbers through it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.instruments.tracing import Call

MOVES = {"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "_unsafe_view"}


@dataclass(frozen=True)
class Scrambled:
    """An operation that only moves numbers, and whose position `place` holds numbers of token `token`."""

    index: int
    call: Call
    place: int
    token: int


def scrambled(calls: Sequence[Call], T: int, rows: int) -> Scrambled | None:
    """The first reshape after which one position of the axis of time holds several tokens, or another one.

    Only tensors with exactly one axis of length T on either side are judged, and with a batch axis that stays.
    """
    for index, call in enumerate(calls):
        if call.name not in MOVES or not call.inputs or not call.outputs:
            continue
        before, after = call.inputs[0], call.outputs[0]
        axis, later = _axis(before, T, rows), _axis(after, T, rows)
        if axis is None or later is None:
            continue
        tags = torch.arange(T).reshape([-1 if number == axis else 1 for number in range(before.dim())])
        moved = tags.expand(before.shape).contiguous().reshape(after.shape)  # every number replaced by its token's
        wanted = torch.arange(T).reshape([-1 if number == later else 1 for number in range(after.dim())])
        wrong = (moved != wanted).nonzero()
        if len(wrong):
            at = wrong[0]
            return Scrambled(index, call, int(at[later]), int(moved[tuple(at)]))
    return None


def _axis(tensor: Tensor, T: int, rows: int) -> int | None:
    axes = [number for number, size in enumerate(tensor.shape) if size == T]
    batches = [number for number, size in enumerate(tensor.shape) if size == rows]
    return axes[0] if len(axes) == 1 and tensor.dim() >= 3 and len(batches) == 1 else None
