"""Windows of tokens. Here, and nowhere else, a target is the token after its input.

The batch of a step is a pure function of (tokens, seed, step): nothing about the order of the data is ever saved.
"""

import math
import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.data.token_file import read_rows

IGNORED = -100  # a target that is not counted, the convention of torch's cross entropy
_LARGE_MAP = 1 << 26  # bytes; the pages of larger memory maps are handed back after every read

Words = NDArray[np.uint64]


class Batch(NamedTuple):
    """Inputs and targets, both (B, T) int64; target t is the token after input t, or -100 where none is counted."""

    inputs: Tensor
    targets: Tensor


def training_batch(
    tokens: NDArray[np.integer],
    *,
    block_size: int,
    batch_size: int,
    seed: int,
    step: int,
) -> Batch:
    """The batch of one step.

    Steps run through the text in epochs. An epoch lays disjoint windows over the text from a place of its own, so
    that over the epochs every place serves as a start equally often, and takes each once, in an order of its own.
    """
    n_starts = len(tokens) - block_size  # starts whose window, and the target of its last input, lie in the text
    assert n_starts >= 1, f"block_size {block_size} needs more than {len(tokens)} tokens"
    first = step * batch_size
    per_epoch = max(1, n_starts // block_size)
    epoch, index = np.divmod(np.arange(first, first + batch_size, dtype=np.uint64), np.uint64(per_epoch))
    keys = mix(mix(np.array([seed], dtype=np.uint64)) + epoch)
    places = _shuffled(index, keys, per_epoch) * np.uint64(block_size)
    starts = (keys % np.uint64(n_starts) + places) % np.uint64(n_starts)  # around the end, back to the beginning
    return _windows(tokens, starts.astype(np.int64), block_size)


def evaluation_batches(
    tokens: NDArray[np.integer], *, block_size: int, batch_size: int, limit: int | None = None
) -> Iterator[Batch]:
    """Windows side by side over the whole text: every token but the first is a target exactly once.

    The last window is filled up with targets that do not count. With a `limit`, whole windows (at least one) with
    about that many targets together, spread evenly over the text.
    """
    starts = evaluation_starts(len(tokens), block_size, limit)
    for first in range(0, len(starts), batch_size):
        yield _windows(tokens, starts[first : first + batch_size], block_size)


def evaluation_starts(n_tokens: int, block_size: int, limit: int | None = None) -> NDArray[np.int64]:
    """Where in the text each window of `evaluation_batches` begins, in their order."""
    n_targets = n_tokens - 1
    assert n_targets >= 1, "a text of one token has no target"
    n_windows = -(-n_targets // block_size)
    chosen = n_windows if limit is None else min(n_windows, max(1, limit // block_size))
    return np.arange(chosen) * n_windows // chosen * block_size


def document_numbers(inputs: Tensor, end_of_document: int) -> Tensor:
    """Which document of its window each token belongs to, from 0. (B, T) -> (B, T). An end belongs to what it ends."""
    ends = (inputs == end_of_document).long()
    return ends.cumsum(dim=1) - ends


def _windows(tokens: NDArray[np.integer], starts: NDArray[np.int64], block_size: int) -> Batch:
    at = starts[:, None] + np.arange(block_size + 1)  # (B, T + 1)
    last = len(tokens) - 1
    window = torch.from_numpy(read_rows(tokens, np.minimum(at, last)).astype(np.int64))
    inputs, targets = window[:, :-1].clone(), window[:, 1:].clone()  # never views of one another: targets are altered
    if starts[-1] + block_size > last:
        targets[torch.from_numpy(at[:, 1:] > last)] = IGNORED
    release(tokens)
    return Batch(inputs, targets)


def release(tokens: NDArray[np.integer]) -> None:
    """Keep a large file's pages out of resident memory; the system's own cache of the file still holds them."""
    if isinstance(tokens.base, mmap.mmap) and tokens.nbytes > _LARGE_MAP and hasattr(mmap, "MADV_DONTNEED"):
        tokens.base.madvise(mmap.MADV_DONTNEED)


def _shuffled(index: Words, keys: Words, size: int) -> Words:
    """Where a permutation of 0..size-1, one per key, sends each index: the generalized Feistel network.

    An index is a place in a table of about sqrt(size) rows and columns, which turn about each other; what lands in
    the rest of the last row is sent on until it is back (Black and Rogaway 2002, "Ciphers with Arbitrary Finite
    Domains"). Nothing has to be stored, and the cost does not grow with the size.
    """
    n_rows = math.isqrt(size - 1) + 1
    n_columns = -(-size // n_rows)
    moved, outside = index.copy(), np.ones(len(index), dtype=bool)
    while outside.any():
        row, column = np.divmod(moved[outside], np.uint64(n_columns))
        for turn in range(4):
            row = (row + mix(keys[outside] + column + np.uint64(turn << 32))) % np.uint64(n_rows)
            column = (column + mix(keys[outside] + row + np.uint64(turn + 4 << 32))) % np.uint64(n_columns)
        moved[outside] = row * np.uint64(n_columns) + column
        outside = moved >= size
    return moved


def mix(bits: Words) -> Words:
    """A bijection of 64-bit words in which every bit depends on every bit: SplitMix64 (Steele, Lea, Flood 2014)."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ bits >> np.uint64(31)
