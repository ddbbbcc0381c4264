"""A file of token ids beside digests of its blocks: altered ones are noticed before anybody learns from them.

A file may be larger than the memory and is never read as a whole. What is read at random is compared block by block,
each block when it is first read, which costs a thousandth of a step; some blocks are compared when the file is opened.
"""

import hashlib
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from clearhead.errors import DataError
from clearhead.files import MANIFEST, write_whole

BLOCK = 1 << 16  # bytes
AT_OPENING = 512  # blocks compared when a file is opened, 32 MiB spread evenly over it: a small file is compared whole
BLOCKS = ".blocks"  # what the file of digests is called, after the file itself
_DIGEST = np.dtype("<u4")  # CRC-32: tells every flipped bit, and all else but once in four billion


class AlteredTokensError(DataError):
    """A file of ids is not what was written."""


class TokenFile(np.memmap[tuple[int], np.dtype[np.integer]]):
    """The ids of a file (N,), compared with their digests before they are read by `rows` or by an index.

    What reads the whole array by itself (`np.asarray`, `.max()`) is not compared.
    """

    _path: Path | None = None  # None for a view or a copy, which is plain memory
    _digests: NDArray[np.uint32]
    _good: NDArray[np.bool_]

    def __new__(cls, path: Path, dtype: str) -> Self:
        """
        Raises:
            OSError, ValueError: there is no such file, or it is empty, or its digests are cut off.
            AlteredTokensError: one of the blocks that are compared at once was altered.
        """
        tokens: Self = cast(Self, super().__new__(cls, path, dtype=dtype, mode="r"))
        tokens._digests = np.frombuffer(path.with_name(path.name + BLOCKS).read_bytes(), dtype=_DIGEST)
        n_blocks = -(-tokens.nbytes // BLOCK)
        if len(tokens._digests) != n_blocks:
            raise ValueError(f"{path} has {n_blocks} blocks and {len(tokens._digests)} digests")
        tokens._path, tokens._good = path, np.zeros(n_blocks, dtype=bool)
        tokens._compare(np.unique(np.linspace(0, n_blocks - 1, min(n_blocks, AT_OPENING)).astype(np.int64)))
        return tokens

    def __getitem__(self, index: Any) -> Any:  # an array or a number, by the index: NumPy has an overload for each
        if self._path is not None:
            places = range(len(self))[index] if isinstance(index, slice) else range(len(self))
            if places:
                self._check(np.array([min(places[0], places[-1])]), np.array([max(places[0], places[-1])]))
        return np.asarray(self)[index]

    def rows(self, at: NDArray[np.int64]) -> NDArray[np.integer]:
        """The ids at (B, T), where each row counts upwards.

        Raises:
            AlteredTokensError: they are not what was written.
        """
        if self._path is not None:
            self._check(at[:, 0], at[:, -1])
        return np.asarray(np.asarray(self)[at])

    def _check(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> None:
        """Compare the blocks of these stretches that were not compared before."""
        width = self.dtype.itemsize
        first, last = first * width // BLOCK, (last * width + width - 1) // BLOCK
        longest = int((last - first).max()) + 1
        blocks = np.minimum(first[:, None] + np.arange(longest), last[:, None])
        if not self._good[blocks].all():
            self._compare(np.unique(blocks[~self._good[blocks]]))

    def _compare(self, blocks: NDArray[np.int64]) -> None:
        content = memoryview(np.asarray(self).view(np.uint8))  # type: ignore[arg-type]
        for block in blocks.tolist():
            if zlib.crc32(content[block * BLOCK : (block + 1) * BLOCK]) != self._digests[block]:
                assert self._path is not None
                with suppress(OSError):
                    (self._path.parent / MANIFEST).unlink()  # so that it is made again
                raise AlteredTokensError(
                    f"{self._path} was altered after it was written; run the same command again, and it is made anew"
                )
            self._good[block] = True


def read_rows(tokens: NDArray[np.integer], at: NDArray[np.int64]) -> NDArray[np.integer]:
    """The ids at (B, T), where each row counts upwards, of memory or of a file."""
    return tokens.rows(at) if isinstance(tokens, TokenFile) else np.asarray(tokens)[at]


def write_digests(path: Path) -> str:
    """Write the digests of a finished file beside it; returns one digest of all that it holds."""
    digests, whole = [], hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digests.append(zlib.crc32(block))
            whole.update(block)
    content = np.array(digests, dtype=_DIGEST).tobytes()
    write_whole(path.with_name(path.name + BLOCKS), lambda temporary: temporary.write_bytes(content))
    return whole.hexdigest()
