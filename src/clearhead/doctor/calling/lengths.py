"""How long the rows are that a model is tried with."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

LENGTHS = (13, 11, 17, 7, 19, 5, 8, 16, 12, 10, 6, 4, 3)  # of rows; primes first, so that their size identifies axes
SOURCE_LENGTHS = (11, 7, 5, 3, 2, 1)
SHORT_LENGTHS = (7, 5, 11, 13, 8, 10, 6, 12, 16, 17, 19, 4, 3)


class Lengths(NamedTuple):
    """Lengths of rows to try: the usual ones, and `more`, those of the person's batch. `equal`: source and target's."""

    usual: Sequence[int]
    more: Sequence[int]
    equal: bool


def lengths_for(model: nn.Module, *, short: bool = False) -> list[int]:
    """Lengths to try: first those that no axis of a weight has, last those of tables that may hold positions."""
    sizes, lengths = _sizes(model), SHORT_LENGTHS if short else LENGTHS
    free = [length for length in lengths[:4] if not {length, length + 1} & sizes]
    tables = {t.shape[-2] for t in (*model.parameters(), *model.buffers()) if t.dim() >= 2 and 1 < t.shape[-2] <= 64}
    return list(dict.fromkeys([*free, *lengths, *sorted(tables, reverse=True)]))[:16]


def lengths_near(model: nn.Module, T: int) -> list[int]:
    """Somewhat larger lengths that no axis of a weight has."""
    sizes = _sizes(model)
    return [length for length in range(T + 1, T + 9) if length not in sizes]


def is_width(model: nn.Module, T: int) -> bool:
    """Whether an axis of a weight is so long that rows of T tokens are mixed up with it."""
    return T in _sizes(model)


def length_of_source(T: int, model: nn.Module) -> int:
    """The length of a source beside T tokens: never T, and no size of a weight's axis if possible, so mix-ups show."""
    shorter = [length for length in SOURCE_LENGTHS if length < T]
    return next((length for length in shorter[:4] if length not in _sizes(model)), shorter[0])


def _sizes(model: nn.Module) -> set[int]:
    return {size for parameter in model.parameters() for size in parameter.shape}
