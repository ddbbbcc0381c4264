"""Documents to token ids, as a stream in bounded memory, on all cores."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.data.documents import Source
from clearhead.data.survey import pieces
from clearhead.data.tokenizers import Tokenizer, UnseenCharacterError
from clearhead.errors import DataError

_PIECE = 1 << 16  # characters that one core encodes at a time
_BATCH = 1 << 20  # characters encoded together, or half as many up to the end of a document


class _Piece(NamedTuple):
    """A stretch of a document: its side (0 training, 1 held out), and where it starts in its document."""

    side: int
    text: str
    document: str
    offset: int
    ends_document: bool


class Encoded(NamedTuple):
    """Ids of a stretch on one side of the cut, and the text they stand for, in characters and UTF-8 bytes.

    `documents` is how many are encoded with it, from the first on; None where one of them is only in part.
    """

    side: int
    ids: NDArray[np.integer]
    characters: int
    n_bytes: int
    documents: int | None = None


@dataclass
class Side:
    """One side of the cut while it is being written: how much has arrived."""

    file: BinaryIO
    tokens: int = 0
    characters: int = 0
    n_bytes: int = 0

    def write(self, encoded: Encoded) -> None:
        """Append to the file."""
        self.file.write(encoded.ids.tobytes())
        self.tokens += len(encoded.ids)
        self.characters += encoded.characters
        self.n_bytes += encoded.n_bytes


def token_type(tokenizer: Tokenizer) -> np.dtype[np.integer]:
    """The smallest unsigned type that holds every id, little endian."""
    return np.min_scalar_type(tokenizer.vocab_size - 1).newbyteorder("<")


def encode_source(
    source: Source, tokenizer: Tokenizer, *, cut: int, separate: bool, done: tuple[int, int] = (0, 0)
) -> Iterator[Encoded]:
    """The ids of all documents, in order.

    Args:
        cut: characters before it are side 0, the others side 1. No token stands on both sides.
        separate: put the tokenizer's end_of_document after each document, where it has one.
        done: so many documents, with so many characters together, are passed over.
    """
    end = tokenizer.end_of_document if separate else None
    batch: list[_Piece] = []
    held, documents = 0, done[0]
    for piece in _cut_pieces(source, cut, done):
        batch.append(piece)
        held += len(piece.text) + 1
        documents += piece.ends_document
        if held >= (_BATCH // 2 if piece.ends_document else _BATCH):
            yield from _encode(batch, tokenizer, end, documents if piece.ends_document else None)
            batch, held = [], 0
    yield from _encode(batch, tokenizer, end, documents)


def _cut_pieces(source: Source, cut: int, done: tuple[int, int]) -> Iterator[_Piece]:
    first, position = done  # characters of all documents so far
    for document in islice(source.documents(), first, None):
        offset = 0
        for text in pieces(document.pieces, _PIECE):
            before = min(max(cut - position, 0), len(text))
            if before:
                yield _Piece(0, text[:before], document.name, offset, False)
            if text[before:]:
                yield _Piece(1, text[before:], document.name, offset + before, False)
            position += len(text)
            offset += len(text)
        yield _Piece(0 if position <= cut else 1, "", document.name, offset, True)


def _encode(batch: list[_Piece], tokenizer: Tokenizer, end: int | None, documents: int | None) -> Iterator[Encoded]:
    texts = [piece.text for piece in batch]
    try:
        rows = tokenizer.encode_batch(texts)
    except UnseenCharacterError:
        raise _locate_error(batch, tokenizer) from None
    dtype = token_type(tokenizer)
    last = max((piece.side for piece in batch), default=0)
    for side in (0, 1):
        mine = [(piece, row) for piece, row in zip(batch, rows, strict=True) if piece.side == side]
        ids = [np.array([end]) if piece.ends_document and end is not None else row for piece, row in mine]
        if ids:
            characters = sum(len(piece.text) for piece, _ in mine)
            n_bytes = sum(len(piece.text.encode("utf-8")) for piece, _ in mine)
            whole = documents if side == last else None
            yield Encoded(side, np.concatenate(ids).astype(dtype), characters, n_bytes, whole)


def _locate_error(batch: list[_Piece], tokenizer: Tokenizer) -> DataError:
    """The sentence with the place in the document rather than in the piece."""
    for piece in batch:
        try:
            tokenizer.encode(piece.text)
        except UnseenCharacterError as unseen:
            where = f"at character {piece.offset + unseen.offset:,} of {piece.document}"
            return UnseenCharacterError(unseen.character, piece.offset + unseen.offset, where)
    raise AssertionError("a batch failed, though each of its pieces can be encoded")
