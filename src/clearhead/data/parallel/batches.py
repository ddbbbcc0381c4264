"""Batches of sentence pairs of about the same length, so that little of them is padding.

The batch of a step is a pure function of (pairs, room, longest, seed, step): nothing about the order is ever saved.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.data.parallel.encoded import EncodedPairs, Rows
from clearhead.data.token_file import read_rows
from clearhead.data.windows import IGNORED, Words, mix, release
from clearhead.errors import DataError

Numbers = NDArray[np.int64]


class PairBatch(NamedTuple):
    """Sources (B, T_src), and what the decoder reads and is to write, both (B, T); all int64.

    A source is its tokens and an end, an input a start and its tokens, a target its tokens and an end. Short rows are
    filled up on the right with the pad, targets with -100.
    """

    source: Tensor
    inputs: Tensor
    targets: Tensor


class PairBatches:
    """The training batches: calling it with a step makes that step's batch.

    Steps run through the pairs in epochs. Every epoch sorts them by their two lengths, pairs of equal lengths in an
    order of its own, cuts that into batches and takes these in an order of its own. The lengths stand in the same
    order in every epoch, so the cuts are the same too, and a step's epoch is a division.

    Attributes:
        n_batches: batches in an epoch.
        n_too_long: pairs that are left out because a side has more than `longest` tokens.
        padding: share of an epoch's numbers, source and target, that is padding.
    """

    def __init__(self, pairs: EncodedPairs, *, room: int, longest: int, pad: int, start: int, seed: int) -> None:
        """
        Args:
            pairs: what to learn from.
            room: most tokens of source and target together, padding too, in a batch of more than one pair.
            longest: most tokens in a source, and in a target; ends count.
            pad: id of the token that fills up rows, on both sides.
            start: id of the token that an input begins with.
            seed: decides the order.

        Raises:
            DataError: every pair is too long.
        """
        self._pairs, self._pad, self._start, self._seed = pairs, pad, start, seed
        self._short = _short(pairs, longest)
        self._lengths = tuple(side.lengths[self._short].astype(np.int32) for side in (pairs.source, pairs.target))
        self.n_too_long = len(pairs) - len(self._short)
        source, target = self._sorted(_numbered(len(self._short)))[1:]
        self._bounds = _cuts(source, target, room)
        self.n_batches = len(self._bounds) - 1
        first, n_rows = self._bounds[:-1], np.diff(self._bounds)
        area = n_rows * (np.maximum.reduceat(source, first) + np.maximum.reduceat(target, first))
        self.padding = float(1 - (source.sum(dtype=np.int64) + target.sum(dtype=np.int64)) / area.sum(dtype=np.int64))
        self._epoch = -1
        self._order = self._turns = np.empty(0, dtype=np.int64)

    def __call__(self, step: int) -> PairBatch:
        """The batch of a step."""
        epoch, index = divmod(step, self.n_batches)
        if epoch != self._epoch:
            self._begin(epoch)
        turn = self._turns[index]
        rows = self._order[self._bounds[turn] : self._bounds[turn + 1]]
        return _batch(self._pairs, rows, self._pad, self._start)

    def _begin(self, epoch: int) -> None:
        """Lay out an epoch: the order of the pairs, and that of the batches."""
        key = mix(mix(np.array([self._seed], dtype=np.uint64)) + np.uint64(epoch))
        self._order = self._short[self._sorted(mix(key + _numbered(len(self._short))))[0]]
        self._turns = np.argsort(mix(mix(key) + _numbered(self.n_batches)), kind="stable")
        self._epoch = epoch

    def _sorted(self, ties: Words) -> tuple[Numbers, NDArray[np.integer], NDArray[np.integer]]:
        source, target = self._lengths
        order = _by_length(source, target, ties)
        return order, source[order], target[order]


def evaluation_pair_batches(
    pairs: EncodedPairs, *, room: int, longest: int, pad: int, start: int, limit: int | None = None
) -> Iterator[PairBatch]:
    """Every pair once, but for those with a side of more than `longest` tokens; short ones first.

    With a `limit`, pairs spread evenly that have about so many targets together, at least one pair. The arguments are
    those of `PairBatches`.

    Raises:
        DataError: every pair is too long.
    """
    chosen = _short(pairs, longest)
    if limit is not None:
        n_targets = int(pairs.target.lengths[chosen].sum())
        n_chosen = min(len(chosen), max(1, round(len(chosen) * limit / n_targets)))
        chosen = chosen[np.arange(n_chosen) * len(chosen) // n_chosen]
    source, target = (side.lengths[chosen] for side in (pairs.source, pairs.target))
    order = _by_length(source, target, _numbered(len(chosen)))
    bounds = _cuts(source[order], target[order], room)
    for first, stop in pairwise(bounds):
        yield _batch(pairs, chosen[order[first:stop]], pad, start)


def _short(pairs: EncodedPairs, longest: int) -> Numbers:
    """The pairs that fit a model, in order."""
    short = np.flatnonzero(np.maximum(pairs.source.lengths, pairs.target.lengths) <= longest)
    if not len(short):
        raise DataError(
            f"every pair has a side of more than {longest} tokens; raise model.block_size, or give shorter sentences"
        )
    return short


def _numbered(n: int) -> Words:
    return np.arange(n, dtype=np.uint64)


def _by_length(source: NDArray[np.integer], target: NDArray[np.integer], ties: Words) -> Numbers:
    """The order by target length, and of equal ones by source length: up and down in turn, so that it never jumps."""
    return np.lexsort((ties, np.where(target % 2, -source, source), target))


def _cuts(source: NDArray[np.integer], target: NDArray[np.integer], room: int) -> Numbers:
    """Where to cut a sorted list of lengths so that every batch is as large as the room allows: bounds, 0 first.

    Takes the pairs of equal lengths together, so the cost grows with their number and not with that of the pairs.
    """
    changes = np.flatnonzero((np.diff(source) != 0) | (np.diff(target) != 0)) + 1
    starts = np.concatenate([[0], changes])
    counts = np.diff(np.concatenate([starts, [len(source)]]))
    bounds = [0]
    n_rows = widest_source = widest_target = 0
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        own_source, own_target = int(source[start]), int(target[start])
        left = count
        while left:
            wide = max(widest_source, own_source) + max(widest_target, own_target)
            fitting = min(left, room // wide - n_rows)
            if fitting <= 0 and n_rows:
                bounds.append(start + count - left)
                n_rows = widest_source = widest_target = 0
                continue
            widest_source, widest_target = max(widest_source, own_source), max(widest_target, own_target)
            n_rows += max(1, fitting)  # a pair that is larger than the room has a batch of its own
            left -= max(1, fitting)
    return np.array([*bounds, len(source)], dtype=np.int64)


def _batch(pairs: EncodedPairs, rows: Numbers, pad: int, start: int) -> PairBatch:
    source, real = _filled(pairs.source, rows)
    source[~real] = pad
    written, real = _filled(pairs.target, rows)
    targets = written.masked_fill(~real, IGNORED)
    inputs = written.roll(1, dims=1)  # the token before each; what comes around stands where the start belongs
    inputs[~real] = pad
    inputs[:, 0] = start
    return PairBatch(source, inputs, targets)


def _filled(side: Rows, rows: Numbers) -> tuple[Tensor, Tensor]:
    """Rows of a side one below the other (B, T), whatever there is behind the short ones, and which of it is theirs."""
    starts, lengths = side.offsets[rows], side.offsets[rows + 1] - side.offsets[rows]
    steps = np.arange(lengths.max())
    at = np.minimum(starts[:, None] + steps, len(side.ids) - 1)  # (B, T)
    ids = torch.from_numpy(read_rows(side.ids, at).astype(np.int64))
    release(side.ids)
    return ids, torch.from_numpy(steps < lengths[:, None])
