"""Along which axis of a batch tokens meet, and along which they are counted: behavior that tells time from batch."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs, Run


@dataclass(frozen=True)
class Axes:
    """Axes of ids, 0 and 1. `mixing`: tokens influence each other along it. `counting`: equal tokens differ along it.

    `forward_only`: along axis 0, no token reaches an earlier one. `to_and_fro`: along axis 1, one does.
    """

    mixing: frozenset[int] = frozenset()
    counting: frozenset[int] = frozenset()
    forward_only: bool = False
    to_and_fro: bool = False

    @property
    def are_time_first(self) -> bool:
        """Tokens are counted along axis 0 and meet there or nowhere, or only one side of them sees the other.

        Rows of a batch are not a sequence, so axis 0 is time if they see each other in one direction only. If tokens
        meet along both axes and are counted along axis 0, one fault explains it with time first, two with batch first.
        """
        if 1 in self.mixing and 0 not in self.mixing:
            return False
        if 1 in self.mixing:
            return self.counting == {0} or (self.forward_only and self.to_and_fro and self.counting != {1})
        return self.counting == {0} or (self.forward_only and not self.counting)

    @property
    def swapped(self) -> Self:
        """The axes of the transposed batch."""
        mixing, counting = (frozenset(1 - axis for axis in axes) for axes in (self.mixing, self.counting))
        return replace(self, mixing=mixing, counting=counting, forward_only=False, to_and_fro=False)


def axes_of(run: Run, inputs: Inputs) -> Axes:
    """What a few changed tokens and a batch of equal tokens show."""
    B, T = inputs.ids.shape
    logits, mixing, upward, leftward = run(inputs), set(), False, False
    for row, column in ((0, 0), (B // 2, T // 2), (B - 1, T - 1)):
        moved = _moved(run, inputs, logits, row, column)
        mixing |= {1} if moved[row].any() else set()
        mixing |= {0} if moved[:, column].any() else set()
        upward |= bool(moved[:row, column].any())
        leftward |= bool(moved[row, :column].any())
    rows = inputs.rows(torch.zeros(B, dtype=torch.long))  # of one source, or its rows would be counted
    equal = run(replace(rows, ids=torch.full_like(inputs.ids, int(inputs.ids[0, 0]))))  # (B, T, V)
    tolerance = 1e-5 * float(equal.abs().max())
    counting = {axis for axis in (0, 1) if float((equal - equal.narrow(axis, 0, 1)).abs().max()) > tolerance}
    return Axes(frozenset(mixing), frozenset(counting), forward_only=0 in mixing and not upward, to_and_fro=leftward)


def influences(run: Run, inputs: Inputs) -> tuple[bool, bool, bool]:
    """Whether the first token moves later logits, whether the last one moves earlier ones, and whether all are finite.

    They are read along time, be it the first or the second axis.
    """
    B, T = inputs.ids.shape
    logits = run(inputs)
    first, last = _moved(run, inputs, logits, 0, 0), _moved(run, inputs, logits, B - 1, T - 1)
    return bool(first.any()), bool(last.any()), bool(logits.isfinite().all())


def _moved(run: Run, inputs: Inputs, logits: Tensor, row: int, column: int) -> Tensor:
    """(B, T), True where another token in one place moves the logits of another place."""
    ids = inputs.ids.clone()
    other = inputs.ids[inputs.ids != ids[row, column]]
    ids[row, column] = other[0] if len(other) else ids[row, column]
    change = (run(replace(inputs, ids=ids)) - logits).abs().amax(-1)  # (B, T)
    moved = change > 1e-6 * float(change.max())
    moved[row, column] = False
    return moved
