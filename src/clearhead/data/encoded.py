"""Documents to token ids, as a stream in bounded memory, on all cores."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.data.documents import Source
from clearhead.data.survey import pieces
from clearhead.data.tokenizers import Tokenizer, UnseenCharacterError
from clearhead.errors import DataError

_PIECE = 1 << 16  # characters that one core encodes at a time
_BATCH = 1 << 20  # characters encoded together


class _Piece(NamedTuple):
    """A stretch of a document: its side (0 training, 1 held out), and where it starts in its document."""

    side: int
    text: str
    document: str
    offset: int
    ends_document: bool


class Encoded(NamedTuple):
    """Ids of a stretch on one side of the cut, and the text they stand for, in characters and UTF-8 bytes."""

    side: int
    ids: NDArray[np.integer]
    characters: int
    n_bytes: int


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


def encode_source(source: Source, tokenizer: Tokenizer, *, cut: int, separate: bool) -> Iterator[Encoded]:
    """The ids of all documents, in order.

    Args:
        cut: characters before it are side 0, the others side 1. No token stands on both sides.
        separate: put the tokenizer's end_of_document after each document, where it has one.
    """
    end = tokenizer.end_of_document if separate else None
    batch: list[_Piece] = []
    held = 0
    for piece in _cut_pieces(source, cut):
        batch.append(piece)
        held += len(piece.text) + 1
        if held >= _BATCH:
            yield from _encode(batch, tokenizer, end)
            batch, held = [], 0
    yield from _encode(batch, tokenizer, end)


def _cut_pieces(source: Source, cut: int) -> Iterator[_Piece]:
    position = 0  # characters of all documents so far
    for document in source.documents():
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


def _encode(batch: list[_Piece], tokenizer: Tokenizer, end: int | None) -> Iterator[Encoded]:
    texts = [piece.text for piece in batch]
    try:
        rows = tokenizer.encode_batch(texts)
    except UnseenCharacterError:
        raise _locate_error(batch, tokenizer) from None
    dtype = token_type(tokenizer)
    for side in (0, 1):
        mine = [(piece, row) for piece, row in zip(batch, rows, strict=True) if piece.side == side]
        ids = [np.array([end]) if piece.ends_document and end is not None else row for piece, row in mine]
        if ids:
            characters = sum(len(piece.text) for piece, _ in mine)
            n_bytes = sum(len(piece.text.encode("utf-8")) for piece, _ in mine)
            yield Encoded(side, np.concatenate(ids).astype(dtype), characters, n_bytes)


def _locate_error(batch: list[_Piece], tokenizer: Tokenizer) -> DataError:
    """The sentence with the place in the document rather than in the piece."""
    for piece in batch:
        try:
            tokenizer.encode(piece.text)
        except UnseenCharacterError as unseen:
            where = f"at character {piece.offset + unseen.offset:,} of {piece.document}"
            return UnseenCharacterError(unseen.character, piece.offset + unseen.offset, where)
    raise AssertionError("a batch failed, though each of its pieces can be encoded")
