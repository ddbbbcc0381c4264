"""How long the rows are that a model is tried with."""

from torch import nn

LENGTHS = (13, 11, 17, 7, 19, 5, 8, 16, 12, 10, 6, 4, 3)  # of rows; primes first, so that axes are told by their size
SHORT_LENGTHS = (7, 5, 11, 13, 8, 10, 6, 12, 16, 17, 19, 4, 3)


def lengths_for(model: nn.Module, *, short: bool = False) -> list[int]:
    """Lengths to try, those first that no axis of a weight has; and those that tables of positions have."""
    sizes = {size for parameter in model.parameters() for size in parameter.shape}
    lengths = SHORT_LENGTHS if short else LENGTHS
    free = [length for length in lengths[:4] if not {length, length + 1} & sizes]
    tables = {t.shape[-2] for t in (*model.parameters(), *model.buffers()) if t.dim() >= 2 and 1 < t.shape[-2] <= 64}
    return list(dict.fromkeys([*free, *lengths, *sorted(tables, reverse=True)]))[:16]


def length_of_source(T: int) -> int:
    """Of a source beside T tokens; never T, so that a mix-up shows."""
    return next(length for length in (11, 7, 5, 3, 2, 1) if length < T)
