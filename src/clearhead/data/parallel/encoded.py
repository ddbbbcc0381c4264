"""Sentence pairs as token ids: rows of different lengths, laid end to end."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clearhead.data.encoded import token_type
from clearhead.data.parallel.reading import Pair
from clearhead.data.parallel.vocabularies import Tokenizers
from clearhead.data.token_file import TokenFile
from clearhead.data.tokenizers import Ids, Tokenizer, UnseenCharacterError

_BATCH = 1 << 20  # characters encoded together
_SIDES = ("source", "target")
_OFFSETS = np.dtype("<i8")


@dataclass(frozen=True)
class Rows:
    """Sentences as ids, each with the end token behind it.

    Attributes:
        ids: all rows one after the other, of the smallest unsigned type; a memory map where they are in a file.
        offsets: (N + 1,) where each row begins, and where the last one stops.
    """

    ids: NDArray[np.integer]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.integer]:
        """Row `index`, counted from 0."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) tokens in each row, its end among them."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs as ids: row i of `target` is the translation of row i of `source`."""

    source: Rows
    target: Rows

    def __len__(self) -> int:
        return len(self.source)

    @property
    def n_tokens(self) -> int:
        """Tokens on both sides, ends too."""
        return len(self.source.ids) + len(self.target.ids)


class Placed(NamedTuple):
    """A pair, the side of the cut that it belongs to (0 training, 1 held out), and the name of where it comes from."""

    pair: Pair
    cut: int
    name: str


def encode_pairs(
    texts: Sequence[tuple[str, str]], source_tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> EncodedPairs:
    """Sentences (source, target) as ids, in memory.

    Raises:
        UnseenCharacterError: a character without a token; a DataError that names it and its line.
    """
    placed = [Placed(Pair(line, *pair), 0, "the text") for line, pair in enumerate(texts, start=1)]
    rows = []
    for side, tokenizer in zip(_SIDES, (source_tokenizer, target_tokenizer), strict=True):
        ids, lengths = _encode(placed, side, tokenizer)
        rows.append(Rows(ids, np.concatenate([[0], np.cumsum(lengths)])))
    return EncodedPairs(*rows)


def write_pairs(folder: Path, pairs: Iterable[Placed], tokenizers: Tokenizers, cuts: Sequence[str]) -> Iterator[int]:
    """Encode the pairs into files of the folder, in bounded memory; yield the number of pairs in each batch.

    Args:
        folder: where `open_encoded` finds them.
        pairs: each of them goes into the files of the side of the cut that it belongs to.
        tokenizers: of the source and of the target.
        cuts: the name of each side of the cut.

    Raises:
        UnseenCharacterError: a character without a token; a DataError that names it and its line.
    """
    with ExitStack() as files:
        writers = [[_Writer.open(folder / f"{cut}.{side}", files) for side in _SIDES] for cut in cuts]
        for batch in _batches(pairs):
            for cut, of_cut in enumerate(writers):
                mine = [placed for placed in batch if placed.cut == cut]
                for side, tokenizer, writer in zip(_SIDES, tokenizers, of_cut, strict=True):
                    if mine:
                        writer.write(*_encode(mine, side, tokenizer))
            yield len(batch)


def ids_files(cuts: Sequence[str]) -> list[str]:
    """The names of the files of ids, which whoever reads them compares with their digests."""
    return [f"{cut}.{side}.bin" for cut in cuts for side in _SIDES]


def open_encoded(folder: Path, cut: str, dtypes: Sequence[str]) -> EncodedPairs:
    """The memory maps of what `write_pairs` left for one side of the cut.

    Raises:
        OSError, ValueError: a file is missing, or shorter or longer than the others say.
        AlteredTokensError: ids are not those that were written.
    """
    rows = []
    for side, dtype in zip(_SIDES, dtypes, strict=True):
        ids_file, offsets_file = _files(folder / f"{cut}.{side}")
        side_rows = Rows(TokenFile(ids_file, dtype), np.memmap(offsets_file, _OFFSETS, mode="r"))
        if side_rows.offsets[-1] != len(side_rows.ids):
            raise ValueError(f"{ids_file} is not whole")
        rows.append(side_rows)
    if len(rows[0]) != len(rows[1]):
        raise ValueError(f"{folder} is not whole")
    return EncodedPairs(*rows)


@dataclass
class _Writer:
    """The two files of one side's rows, while they are being written."""

    ids: BinaryIO
    offsets: BinaryIO
    n_tokens: int = 0

    @classmethod
    def open(cls, path: Path, files: ExitStack) -> "_Writer":
        ids, offsets = (files.enter_context(file.open("wb")) for file in _files(path))
        offsets.write(np.zeros(1, _OFFSETS).tobytes())
        return cls(ids, offsets)

    def write(self, ids: NDArray[np.integer], lengths: Ids) -> None:
        self.ids.write(ids.tobytes())
        self.offsets.write((self.n_tokens + np.cumsum(lengths)).astype(_OFFSETS).tobytes())
        self.n_tokens += len(ids)


def _files(path: Path) -> tuple[Path, Path]:
    return path.with_name(path.name + ".bin"), path.with_name(path.name + ".offsets")


def _batches(pairs: Iterable[Placed]) -> Iterator[list[Placed]]:
    batch: list[Placed] = []
    held = 0
    for placed in pairs:
        batch.append(placed)
        held += len(placed.pair.source) + len(placed.pair.target)
        if held >= _BATCH:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def _encode(batch: list[Placed], side: str, tokenizer: Tokenizer) -> tuple[NDArray[np.integer], Ids]:
    """The rows of one side, end to end, and how long each is."""
    assert tokenizer.end_of_document is not None, "sentence pairs need a tokenizer with an end"
    texts = [getattr(placed.pair, side) for placed in batch]
    try:
        rows = tokenizer.encode_batch(texts)
    except UnseenCharacterError:
        raise _locate_error(batch, side, tokenizer) from None
    lengths = np.array([len(row) + 1 for row in rows], dtype=np.int64)
    ids = np.full(lengths.sum(), tokenizer.end_of_document, dtype=token_type(tokenizer))
    ends = np.zeros(len(ids), dtype=bool)
    ends[np.cumsum(lengths) - 1] = True
    if rows:
        ids[~ends] = np.concatenate(rows)
    return ids, lengths


def _locate_error(batch: list[Placed], side: str, tokenizer: Tokenizer) -> UnseenCharacterError:
    """The sentence with the line in the file rather than in the sentence."""
    for placed in batch:
        try:
            tokenizer.encode(getattr(placed.pair, side))
        except UnseenCharacterError as unseen:
            where = f"at character {unseen.offset:,} of the {side} in line {placed.pair.line:,} of {placed.name}"
            return UnseenCharacterError(unseen.character, unseen.offset, where)
    raise AssertionError("a batch failed, though each of its sentences can be encoded")
