"""The first module, and the first operation, that writes what it had no right to know."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.probes.tracing import ModuleCall, home_of, recorded_modules, recorded_ops
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Where

Reading = Callable[
    [Tensor, Tensor], Tensor | None
]  # a tensor before and after -> influences (n, n), None: not readable
NOISE = 1e-6  # of the largest change in a tensor


def token_reading(n: int) -> Reading:
    """How tokens influence the positions of a hidden tensor, in a batch of n + 1 rows whose row j has token j changed.

    Understands (B, T, ...), (T, B, ...), (B, H, T, K), (B * H, T, K) and (B * T, ...). Tensors with two axes of time,
    such as attention scores, say nothing.
    """
    rows = n + 1

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        if before.shape != after.shape or before.dim() < 2 or not before.numel():
            return None
        change = (after - before).nan_to_num(0, 0, 0).abs()
        change = _unfolded(change, rows, n)
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
        change = (after - before).nan_to_num(0, 0, 0).abs()
        change = change.movedim(change.shape.index(rows), 0).reshape(rows, -1).amax(-1)  # (rows,)
        return change > NOISE * float(change.max())

    return read


def kept_reading(keep: Tensor) -> Reading:
    """Which real tokens' places of a hidden tensor change, where only padding changed.

    Args:
        keep: (B, n), True for real tokens. In tensors without an axis of length n every change counts.
    """
    rows, n = keep.shape

    def read(before: Tensor, after: Tensor) -> Tensor | None:
        if before.shape != after.shape or rows not in before.shape or not before.numel():
            return None
        change = (after - before).nan_to_num(0, 0, 0).abs()
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


def trace_ops(run: Run, before: Inputs, after: Inputs) -> tuple[list[ModuleCall], list[ModuleCall]]:
    """All operations in two passes."""
    with torch.no_grad(), recorded_ops() as first:
        run(before)
    with torch.no_grad(), recorded_ops() as second:
        run(after)
    return first.calls, second.calls


def first_guilty(
    before: Sequence[ModuleCall], after: Sequence[ModuleCall], reading: Reading, forbidden: Callable[[Tensor], bool]
) -> ModuleCall | None:
    """The first call that writes something forbidden and read nothing forbidden."""
    for first, second in zip(before, after, strict=False):
        if _writes(first.outputs, second.outputs, reading, forbidden) and not _writes(
            first.inputs, second.inputs, reading, forbidden
        ):
            return second
    return None


def _writes(
    before: Sequence[Tensor], after: Sequence[Tensor], reading: Reading, forbidden: Callable[[Tensor], bool]
) -> bool:
    for first, second in zip(before, after, strict=False):
        influences = reading(first, second)
        if influences is not None and forbidden(influences):
            return True
    return False


def locate(
    model: nn.Module, run: Run, before: Inputs, after: Inputs, reading: Reading, forbidden: Callable[[Tensor], bool]
) -> tuple[Where, ModuleCall | None]:
    """The guilty module, the line of the guilty operation in it, and the module's call."""
    call = first_guilty(*trace_modules(model, run, before, after), reading, forbidden)
    op = first_guilty(*_quietly(lambda: trace_ops(run, before, after)), reading, forbidden)
    if call is None:
        return Where(file=op.file if op else None, line=op.line if op else None, op=op.name if op else None), None
    assert call.module is not None
    file, line = home_of(call.module)
    if file is None:  # a part of torch: whoever called it is to be changed
        file, line = call.file, call.line
    elif op and op.file == file:
        line = op.line
    return Where(call.name, type(call.module).__name__, file, line, op.name if op else None), call


def _quietly(
    trace: Callable[[], tuple[list[ModuleCall], list[ModuleCall]]],
) -> tuple[list[ModuleCall], list[ModuleCall]]:
    """Operations are a refinement: where they cannot be watched, the module is enough."""
    with attempt():
        return trace()
    return [], []  # a finding without its line is a finding
