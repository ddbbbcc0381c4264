"""The first module, and the first operation, that writes what it must not know."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.probes.tensors import are_same
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Where

# a tensor before and after -> which of its positions change; None if that cannot be read from it
Reading = Callable[[Tensor, Tensor], Tensor | None]
NOISE = 1e-6  # of the largest change in a tensor


class Located(NamedTuple):
    """The guilty module's call, and the index of the guilty operation among all operations of the pass before."""

    where: Where
    call: ModuleCall | None
    op: int | None
    operations: list[ModuleCall]


def _change(before: Tensor, after: Tensor) -> Tensor | None:
    """By how much each number changes; None if that cannot be told."""
    is_alike = before.shape == after.shape and before.numel()
    return (after - before).nan_to_num(0, 0, 0).abs() if is_alike else None


def _largest(change: Tensor, rows: int, n: int) -> Tensor | None:
    """Which rows change, (rows,), or which of their positions, (rows, n), if one axis has that size.

    None if the axes cannot be told apart, as those of attention scores, which have two of time.
    """
    times = [axis for axis, size in enumerate(change.shape) if size == n]
    row = change.shape.index(rows) if rows in change.shape else None
    if row is None or len(times) > 1 or times == [row]:
        return None
    change = change.movedim((row, *times), tuple(range(1 + len(times))))
    change = change.reshape(*change.shape[: 1 + len(times)], -1).amax(-1)
    return change > NOISE * float(change.max())


def token_reading(n: int) -> Reading:
    """How tokens influence the positions (n, n) of a hidden tensor, if row j of n + 1 equal rows has token j changed.

    Understands (B, T, ...), (T, B, ...), (B, H, T, K), (B * H, T, K) and (B * T, ...).
    """

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        change = _change(before, after)
        alive = None if change is None or change.dim() < 2 else _largest(_unfolded(change, n + 1, n), n + 1, n)
        return None if alive is None or alive.dim() < 2 else alive[:n].t()  # position, token

    return read


def row_reading(rows: int) -> Reading:
    """Which rows of a hidden tensor change; the first axis of that size is the batch."""

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        change = _change(before, after)
        return None if change is None else _largest(change, rows, -1)

    return read


def kept_reading(keep: Tensor) -> Reading:
    """Which real tokens' positions of a hidden tensor change if only padding changed.

    Args:
        keep: (B, n), True for real tokens. In tensors without an axis of length n every change counts.
    """

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        change = _change(before, after)
        alive = None if change is None else _largest(change, *keep.shape)
        return alive if alive is None or alive.dim() < 2 else alive & keep

    return read


def _unfolded(change: Tensor, rows: int, n: int) -> Tensor:
    first = change.shape[0]
    if first == rows * n:
        return change.reshape(rows, n, *change.shape[1:])
    if first not in (rows, n) and first % rows == 0 and rows not in change.shape:
        joined = change.reshape(rows, first // rows, *change.shape[1:])  # heads folded into the batch, row by row
        stacked = change.reshape(first // rows, rows, *change.shape[1:]).transpose(0, 1)  # or head by head
        return stacked if joined[-1].any() and not stacked[-1].any() else joined  # the last row did not change
    return change


def trace_modules(
    model: nn.Module, run: Run, before: Inputs, after: Inputs
) -> tuple[list[ModuleCall], list[ModuleCall]]:
    """All calls of modules in two passes."""
    with torch.no_grad(), recorded_modules(model) as first:
        run(before)
    with torch.no_grad(), recorded_modules(model) as second:
        run(after)
    return first, second


def first_unlike(before: Sequence[ModuleCall], after: Sequence[ModuleCall]) -> ModuleCall | None:
    """The first module that makes different outputs from the same inputs in two passes."""
    pairs = zip(before, after, strict=False)
    unlike = (a for a, b in pairs if are_same(a.inputs, b.inputs) and not are_same(a.outputs, b.outputs))
    return next(unlike, None)


def first_guilty(
    before: Sequence[ModuleCall], after: Sequence[ModuleCall], reading: Reading, forbidden: Callable[[Tensor], bool]
) -> ModuleCall | None:
    """The first call, in the second pass, that writes something forbidden and read nothing forbidden."""

    def knows(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool:
        influences = (reading(first, second) for first, second in zip(before, after, strict=False))
        return any(alive is not None and forbidden(alive) for alive in influences)

    pairs = zip(before, after, strict=False)
    guilty = (b for a, b in pairs if knows(a.outputs, b.outputs) and not knows(a.inputs, b.inputs))
    return next(guilty, None)


def locate(
    model: nn.Module, run: Run, before: Inputs, after: Inputs, reading: Reading, forbidden: Callable[[Tensor], bool]
) -> Located:
    """The first module, and the first operation, that writes something forbidden."""
    call = first_guilty(*trace_modules(model, run, before, after), reading, forbidden)
    first, second = recorded_ops(), recorded_ops()
    op: ModuleCall | None = None
    with attempt(), torch.no_grad():  # if operations cannot be watched, the module is enough
        with first:
            run(before)
        with second:
            run(after)
        op = first_guilty(first.calls, second.calls, reading, forbidden)
    index = next((k for k, other in enumerate(second.calls) if other is op), None)
    where = replace(place_of_call(call, op), op=op.name if op else None)
    if op and (call is None or call.module is None):
        where = Where(file=op.file, line=op.line, op=op.name)
    return Located(where, call, index, first.calls)
