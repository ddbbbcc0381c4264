"""The first module, and the first operation, that writes what it must not know."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.probes.tensors import are_same
from clearhead.doctor.probes.tracing import ModuleCall, home_of, recorded_modules, recorded_ops
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


def _change(before: Tensor, after: Tensor) -> Tensor:
    return (after - before).nan_to_num(0, 0, 0).abs()


def token_reading(n: int) -> Reading:
    """How tokens influence the positions (n, n) of a hidden tensor, if row j of n + 1 equal rows has token j changed.

    Understands (B, T, ...), (T, B, ...), (B, H, T, K), (B * H, T, K) and (B * T, ...). Tensors with two axes of time,
    such as attention scores, say nothing.
    """
    rows = n + 1

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        if before.shape != after.shape or before.dim() < 2 or not before.numel():
            return None
        change = _unfolded(_change(before, after), rows, n)
        axes = [axis for axis, size in enumerate(change.shape) if size == rows]
        times = [axis for axis, size in enumerate(change.shape) if size == n]
        if not axes or len(times) != 1:
            return None
        change = change.movedim((axes[0], times[0]), (0, 1))  # (rows, n, ...)
        change = change.reshape(rows, n, -1).amax(-1)[:n].t()  # (n, n): position, token
        return change > NOISE * float(change.max())

    return read


def row_reading(rows: int) -> Reading:
    """Which rows of a hidden tensor change; the first axis of that size is the batch."""

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        if before.shape != after.shape or rows not in before.shape or not before.numel():
            return None
        change = _change(before, after)
        change = change.movedim(change.shape.index(rows), 0).reshape(rows, -1).amax(-1)  # (rows,)
        return change > NOISE * float(change.max())

    return read


def kept_reading(keep: Tensor) -> Reading:
    """Which real tokens' positions of a hidden tensor change if only padding changed.

    Args:
        keep: (B, n), True for real tokens. In tensors without an axis of length n every change counts.
    """
    rows, n = keep.shape

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        if before.shape != after.shape or rows not in before.shape or not before.numel():
            return None
        change = _change(before, after)
        times = [axis for axis, size in enumerate(change.shape) if size == n]
        row = change.shape.index(rows)
        if len(times) > 1 or times == [row]:
            return None
        alive = change > NOISE * float(change.max())
        if not times:
            return alive.movedim(row, 0).reshape(rows, -1)
        return alive.movedim((row, times[0]), (0, 1)).reshape(rows, n, -1).any(-1) & keep

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
    if call is None or call.module is None:
        where = Where(file=op.file, line=op.line, op=op.name) if op else Where()
        return Located(where, None, index, first.calls)
    file, line = home_of(call.module)
    if file is None:  # a part of torch: whoever called it is to be changed
        file, line = call.file, call.line
    elif op and op.file == file:
        line = op.line
    return Located(
        Where(call.name, type(call.module).__name__, file, line, op.name if op else None), call, index, first.calls
    )
