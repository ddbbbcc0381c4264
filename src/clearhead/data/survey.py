"""What a text is made of, found in one reading: documents, characters, alphabet; and where to cut it."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from clearhead.data.documents import Source
from clearhead.data.tokenizers import code_points

_SAMPLE = 16_000_000  # characters from which a vocabulary is trained
_SAMPLE_PIECE = 4096
_CODE_POINTS = 0x110000


@dataclass(frozen=True)
class Survey:
    """Characters in each document, the distinct characters in the order of code points, and all bytes in UTF-8."""

    lengths: NDArray[np.int64]
    alphabet: str
    n_bytes: int

    @property
    def characters(self) -> int:
        """Characters in all documents."""
        return int(self.lengths.sum())


def survey(source: Source) -> Survey:
    """Read the source once, in bounded memory. DataErrors of reading come from here first."""
    lengths, n_bytes = array("q"), 0
    present = np.zeros(_CODE_POINTS, dtype=bool)
    for document in source.documents():
        length = 0
        for piece in document.pieces:
            length += len(piece)
            n_bytes += len(piece.encode("utf-8", "surrogatepass"))
            codes = code_points(piece)
            present[codes if codes.itemsize > 1 else np.flatnonzero(np.bincount(codes))] = (
                True  # counting bytes is quicker
            )
        lengths.append(length)
    return Survey(np.array(lengths, dtype=np.int64), "".join(map(chr, np.flatnonzero(present))), n_bytes)


def place_of_cut(lengths: NDArray[np.int64], val_fraction: float) -> int:
    """How many characters, from the start, are for training.

    The cut moves to the nearest end of a document, so that no document is on both sides, as long as each side keeps
    at least half of its share and the held-out one gets at most twice its own. Otherwise it falls inside a document.
    """
    total = int(lengths.sum())
    target = int(total * (1 - val_fraction))
    ends = np.cumsum(lengths)[:-1]
    held_out = total - ends
    sensible = (
        (held_out >= total * val_fraction / 2)
        & (held_out <= total * val_fraction * 2)
        & (ends >= total * (1 - val_fraction) / 2)
    )
    ends = ends[sensible]
    return int(ends[np.abs(ends - target).argmin()]) if ends.size else target


def sample(source: Source, characters: int) -> Iterator[str]:
    """Short pieces spread evenly over a source of that many characters, bounded together."""
    every = (piece for document in source.documents() for piece in pieces(document.pieces, _SAMPLE_PIECE))
    return islice(every, 0, None, sample_stride(characters))


def sample_stride(characters: int) -> int:
    """The sampling stride for a text of this length: the vocabulary is trained on every n-th piece."""
    return -(-characters // _SAMPLE)


def pieces(texts: Iterable[str], size: int) -> Iterator[str]:
    """The same text in pieces of at most `size` characters, cut where no usual tokenizer has a token across.

    That is before a single space between two letters. A stretch of `size` characters without one is cut anyway.
    """
    held = ""
    for text in texts:
        held += text
        start = 0
        while len(held) - start > size:
            cut = _safe_cut(held, start, start + size)
            yield held[start:cut]
            start = cut
        held = held[start:]
    if held:
        yield held


def _safe_cut(text: str, start: int, stop: int) -> int:
    at = text.rfind(" ", start + 1, stop)
    while at > 0 and not (text[at - 1].isalpha() and text[at + 1].isalpha()):
        at = text.rfind(" ", start + 1, at)
    return at if at > 0 else stop
