"""Tokens hidden for a model to fill in: the masked objective of BERT (Devlin et al. 2019, arXiv 1810.04805, 3.1).

Which tokens are hidden is, like the windows they stand in, a pure function of (tokens, seed, step).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.data.tokenizers import Tokenizer
from clearhead.data.windows import (
    IGNORED,
    Batch,
    Words,
    evaluation_batches,
    evaluation_starts,
    mix,
    training_batch,
)
from clearhead.errors import DataError

HIDDEN, EXCHANGED = 0.8, 0.1  # of the chosen tokens: become the mask, become another token; the others stay
PIECES = (
    1,
    2,
    1,
    4,
    1,
    8,
    1,
    16,
)  # into how many rows each window is cut, step after step: every second one stays whole
SHORTEST = 8  # tokens of a row that was cut
_TRAINING, _EVALUATION = 0x6D61736B, 0x66696C6C  # so that masks have nothing in common with the order of the windows


@dataclass(frozen=True)
class Masking:
    """What is done to the tokens of a window.

    Attributes:
        mask: id of the token that stands for a hidden one.
        vocab_size: ids are below it.
        special: ids that are never chosen and never put in another's place; the mask is one of them.
        probability: share of the tokens of a window that are chosen.
    """

    mask: int
    vocab_size: int
    special: frozenset[int]
    probability: float

    def __post_init__(self) -> None:
        assert self.mask in self.special, "the mask itself is never chosen"
        assert all(0 <= i < self.vocab_size for i in self.special), "a special token is no token of the vocabulary"
        assert self.vocab_size - len(self.special) >= 2, "no token has another that could take its place"
        assert 0 < self.probability < 1

    @classmethod
    def of(cls, tokenizer: Tokenizer, probability: float) -> Self:
        """For the ids of a tokenizer, which must have a mask.

        Raises:
            DataError: it has a single token that is none of the special ones.
        """
        assert tokenizer.mask is not None, "a tokenizer for the masked objective needs a mask"
        special = frozenset(i for i in (tokenizer.mask, tokenizer.pad, tokenizer.end_of_document) if i is not None)
        if tokenizer.vocab_size - len(special) < 2:
            raise DataError("the text is a single repeated character; there is nothing to learn from it")
        return cls(tokenizer.mask, tokenizer.vocab_size, special, probability)


def masked_training_batch(
    tokens: NDArray[np.integer],
    *,
    block_size: int,
    batch_size: int,
    seed: int,
    step: int,
    masking: Masking,
) -> Batch:
    """The batch of one step: the windows of `training_batch`, masked.

    Inputs and targets (B, T), or (2 B, T / 2) and so on: in every second step the windows are cut into shorter rows,
    so that the model also sees short texts and text boundaries.
    A target is the token that was chosen at its own place, and -100 everywhere else.
    """
    ids = training_batch(tokens, block_size=block_size, batch_size=batch_size, seed=seed, step=step).inputs
    first, pieces = step * batch_size, _pieces(step, block_size)
    windows = np.arange(first, first + len(ids), dtype=np.uint64)  # counted over the whole training
    keys = mix(mix(np.array([seed], dtype=np.uint64) ^ np.uint64(_TRAINING)) + windows)  # (B,)
    places: Words = np.arange(pieces, dtype=np.uint64)
    keys = mix(keys[:, None] + places).reshape(-1)  # (B, pieces) -> (B * pieces,)
    return masked(ids.view(-1, block_size // pieces), keys, masking)  # (B * pieces, T / pieces)


def masked_evaluation_batches(
    tokens: NDArray[np.integer], *, block_size: int, batch_size: int, masking: Masking, limit: int | None = None
) -> Iterator[Batch]:
    """The windows of `evaluation_batches`, masked in the same proportions as in training.

    What is masked depends on the window and where in the text it stands, and on nothing else: a held-out loss is one
    number, whatever the batch size. The last window, where it is shorter, is a batch of its own without any filling.
    """
    starts = evaluation_starts(len(tokens), block_size, limit).astype(np.uint64)
    keys = mix(mix(np.array([_EVALUATION], dtype=np.uint64)) + starts)
    for ids, targets in evaluation_batches(tokens, block_size=block_size, batch_size=batch_size, limit=limit):
        here, keys = keys[: len(ids)], keys[len(ids) :]
        whole = len(ids) - int(targets[-1, -1] == IGNORED)  # rows without filling; only the text's last can have any
        if whole:
            yield masked(ids[:whole], here[:whole], masking)
        if whole < len(ids):
            length = int((targets[-1] != IGNORED).sum())
            yield masked(ids[whole:, :length], here[whole:], masking)


def masked(ids: Tensor, keys: Words, masking: Masking) -> Batch:
    """Choose tokens of every row, hide them, and ask for them.

    Of n tokens that are not special, `probability` * n are chosen, at least one where there is one; a fraction of a
    token is rounded up or down by chance. Of the chosen ones 80 % become the mask, 10 % another token of the
    vocabulary, all equally likely, and 10 % stay.

    Args:
        ids: (B, T) int64, left as they are.
        keys: (B,) random words; a row's mask depends on its own word alone.
        masking: which tokens, and how many.
    """
    tokens: NDArray[np.int64] = ids.numpy()
    columns: Words = np.arange(ids.shape[1], dtype=np.uint64)
    order = mix(keys[:, None] + columns)  # (B, T)
    fate = mix(order)
    chosen = _chosen(tokens, order, _share(mix(~keys)), masking)
    share = _share(fate)
    inputs = np.where(chosen & (share < HIDDEN), masking.mask, tokens)
    exchanged = chosen & (share >= HIDDEN) & (share < HIDDEN + EXCHANGED)
    inputs[exchanged] = _others(tokens[exchanged], mix(fate[exchanged]), masking)
    return Batch(torch.from_numpy(inputs), torch.from_numpy(np.where(chosen, tokens, IGNORED)))


def _pieces(step: int, block_size: int) -> int:
    """Into how many rows of equal length, none too short, a window is cut in this step."""
    pieces = math.gcd(PIECES[step % len(PIECES)], block_size)
    while pieces > 1 and block_size // pieces < SHORTEST:
        pieces //= 2
    return pieces


def _chosen(
    tokens: NDArray[np.int64], order: Words, rounding: NDArray[np.float64], masking: Masking
) -> NDArray[np.bool_]:
    """Where a row's tokens stand that come first in `order` (B, T); `rounding` (B,) in [0, 1) rounds their number."""
    can_be = ~np.isin(tokens, sorted(masking.special))
    count = np.maximum(1, np.floor(masking.probability * can_be.sum(axis=1) + rounding)).astype(np.int64)  # (B,)
    order = np.where(can_be, order, np.iinfo(np.uint64).max)
    last = np.take_along_axis(np.sort(order, axis=1), count[:, None] - 1, axis=1)  # (B, 1)
    return can_be & (order <= last)


def _others(tokens: NDArray[np.int64], bits: Words, masking: Masking) -> NDArray[np.int64]:
    """For each token (N,) another one that is not special, each equally likely."""
    special = np.array(sorted(masking.special))
    n_ordinary = masking.vocab_size - len(special)
    away = (bits % np.uint64(n_ordinary - 1)).astype(np.int64) + 1
    others = (tokens - np.searchsorted(special, tokens) + away) % n_ordinary  # counted without the special ones
    for token in special:
        others += others >= token
    return others


def _share(bits: Words) -> NDArray[np.float64]:
    """Words as numbers in [0, 1), evenly spread."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
