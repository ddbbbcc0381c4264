"""What a generated text has copied from the training text: its longest copied span, and the share of its n-grams.

The training tokens are read once, piece by piece, so there may be more of them than the memory holds. Hashes name the
candidates (Karp & Rabin 1987), and candidates are compared token by token: nothing is reported that is not there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clearhead.data.windows import mix, release
from clearhead.errors import UsageError
from clearhead.inspection.grid import table
from clearhead.inspection.view import Row, View
from clearhead.pages import text
from clearhead.wording import counted

Ids = NDArray[np.int64]
Hashes = NDArray[np.uint64]
PIECE = 1 << 20  # training tokens that are looked at together
BASE = 0x9E3779B97F4A7C15  # of the polynomial; odd, so that it has an inverse modulo 2^64


@dataclass(frozen=True, repr=False)
class Memorization(View):
    """How much of some texts is copied.

    Attributes:
        n: how many tokens an n-gram has.
        n_grams, copied: for each text, how many it has, and how many of these the training text has as well.
        longest: tokens of the longest copied span; 0 if no token is copied.
        text, start: in which text it is, and where; counted from 0.
        source_start: where it is in the training tokens.
        span: the span as text, where it is known.
    """

    n: int
    n_grams: tuple[int, ...]
    copied: tuple[int, ...]
    longest: int
    text: int
    start: int
    source_start: int
    span: str = ""

    @property
    def share(self) -> float:
        """Of all n-grams that are copied; 0 where every text is shorter."""
        return sum(self.copied) / max(1, sum(self.n_grams))

    def named(self, span: str) -> "Memorization":
        """With the longest span as text."""
        return replace(self, span=span)

    @property
    def title(self) -> str:
        return "What is copied from the training text"

    @property
    def verdict(self) -> str:
        return (
            f"{self.share:.1%} of {counted(sum(self.n_grams), f'{self.n}-gram')} are copied; the longest copied span "
            f"has {counted(self.longest, 'token')}."
        )

    def rows(self) -> Sequence[Row]:
        numbers = enumerate(zip(self.n_grams, self.copied, strict=True))
        return [{"text": index, "n_grams": n_grams, "copied": copied} for index, (n_grams, copied) in numbers]

    def as_dict(self) -> dict[str, object]:
        fields = ("n", "share", "longest", "text", "start", "source_start", "span")
        return {field: getattr(self, field) for field in fields} | {"texts": list(self.rows())}

    def main(self) -> str:
        span = f"<h2>The longest copied span</h2><pre>{text(self.span)}</pre>" if self.span else ""
        head = ("text", f"{self.n}-grams", "copied")
        return span + table(head, [tuple(row.values()) for row in self.rows()])


def measure_memorization(
    tokens: NDArray[np.integer], texts: Sequence[Sequence[int]], *, n: int = 20, piece: int = PIECE
) -> Memorization:
    """What of the texts is copied from the training tokens.

    Args:
        tokens: the training tokens (N,), in memory or in a file.
        texts: token ids of what was generated.
        n: tokens of an n-gram.
        piece: training tokens that are looked at together; memory grows with it, and nothing else depends on it.

    Raises:
        UsageError: `n` is below 1, or there is no text.
    """
    if n < 1:
        raise UsageError(f"`n` is at least 1, not {n}")
    if not any(map(len, texts)):
        raise UsageError("there is no text to compare with the training text")
    # All texts in a row, each followed by a number that no token has: no match can reach beyond a text.
    written = Hashed(np.concatenate([np.array([*ids, -1 - index], dtype=np.int64) for index, ids in enumerate(texts)]))
    copied = np.zeros(max(0, len(written.ids) - n + 1), dtype=bool)
    longest, start, source_start = 0, 0, 0
    for first, part in pieces(tokens, piece, overlap=max(n, *map(len, texts)) - 1):
        for at, _ in matches(written, part, n, known=copied):
            copied[at] = True
        match = longest_match(written, part, longest)
        if match is not None:
            longest, start, source_start = match[0], match[1], first + match[2]
    ends = np.cumsum([len(ids) + 1 for ids in texts])
    starts = ends - [len(ids) + 1 for ids in texts]
    index = int(np.searchsorted(ends, start, side="right"))
    counts = tuple(max(0, len(ids) - n + 1) for ids in texts)
    copies = tuple(int(copied[at : at + count].sum()) for at, count in zip(starts.tolist(), counts, strict=True))
    return Memorization(n, counts, copies, longest, index, start - int(starts[index]), source_start)


class Hashed:
    """Token ids, and the hash of every span of them: a polynomial modulo 2^64, from sums that are made once."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids

    @cached_property
    def sums(self) -> Hashes:
        """(T + 1,): the polynomial up to each token."""
        terms = mix(self.ids.astype(np.uint64)) * powers(BASE, len(self.ids))
        return np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(terms, dtype=np.uint64)])

    @cached_property
    def shifts(self) -> Hashes:
        """(T,): what brings a span to the beginning."""
        return powers(pow(BASE, -1, 2**64), len(self.ids))

    def spans(self, length: int) -> Hashes:
        """(T - length + 1,): the hashes of all spans of this length."""
        sums = self.sums[length:] - self.sums[: max(0, len(self.sums) - length)]
        return sums * self.shifts[: len(sums)]


def powers(base: int, count: int) -> Hashes:
    """1, base, base^2, ... modulo 2^64."""
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)


def pieces(tokens: NDArray[np.integer], size: int, overlap: int) -> Iterator[tuple[int, Hashed]]:
    """Where each piece begins, and the piece, with so many tokens of the next one."""
    for first in range(0, len(tokens), size):
        yield first, Hashed(np.asarray(tokens[first : first + size + overlap]).astype(np.int64))
        release(tokens)


def matches(
    written: Hashed, part: Hashed, length: int, known: NDArray[np.bool_] | None = None
) -> Iterator[tuple[int, int]]:
    """Every start of a span that both have, but those that are `known`: in what was written, and one in the part."""
    own, hashes = written.spans(length), part.spans(length)
    open_starts = np.arange(len(own)) if known is None else np.flatnonzero(~known)
    hits = np.flatnonzero(np.isin(hashes, own[open_starts]))
    while len(hits) and len(open_starts):
        values, index = np.unique(hashes[hits], return_index=True)  # the first place in the part of each hash
        at = np.searchsorted(values, own[open_starts])
        at[at == len(values)] = 0
        is_candidate = values[at] == own[open_starts]
        starts, places = open_starts[is_candidate], hits[index[at[is_candidate]]]
        is_same = equal_spans(written.ids, starts, part.ids, places, length)
        yield from zip(starts[is_same].tolist(), places[is_same].tolist(), strict=True)
        # What is left has another span of the same hash: its next place in the part is compared.
        open_starts = np.setdiff1d(starts, starts[is_same])
        rest = np.delete(hits, index)
        hits = rest[np.isin(hashes[rest], own[open_starts])]


def equal_spans(first: Ids, starts: Ids, second: Ids, places: Ids, length: int) -> NDArray[np.bool_]:
    """Whether the spans at each pair of starts are the same, compared token by token."""
    is_same = np.ones(len(starts), dtype=bool)
    for offset in range(length):
        is_same &= first[starts + offset] == second[places + offset]
    return is_same


def longest_match(written: Hashed, part: Hashed, longest: int) -> tuple[int, int, int] | None:
    """The longest span that both have, if it is longer: its length, and its start in either."""
    best, low, high = None, longest, min(len(written.ids), len(part.ids)) + 1  # no span of `high` tokens is in both
    length = low + 1
    while length < high:
        match = next(matches(written, part, length), None)
        if match is None:
            if best is None:
                return None
            high = length
        else:
            start, other = match
            room = min(len(written.ids) - start, len(part.ids) - other)
            differ = np.flatnonzero(written.ids[start : start + room] != part.ids[other : other + room])
            low = int(differ[0]) if len(differ) else room
            best = (low, start, other)
        length = max(low + 1, (low + high) // 2)
    return best
