from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data import IGNORED, Batch, document_numbers, evaluation_batches, training_batch

# Token i of this text is i, so that a batch says itself which places it was taken from.
TEXT = np.arange(5000, dtype=np.uint16)

lengths = st.integers(2, 400)
seeds = st.integers(0, 2**32)


def batch_of(n_tokens: int, block_size: int, batch_size: int, seed: int, step: int) -> Batch:
    return training_batch(TEXT[:n_tokens], block_size=block_size, batch_size=batch_size, seed=seed, step=step)


@given(lengths, st.data(), st.integers(1, 8), seeds, st.integers(0, 10**7))
def test_a_target_is_the_token_after_its_input(
    n_tokens: int, data: st.DataObject, batch_size: int, seed: int, step: int
) -> None:
    block_size = data.draw(st.integers(1, n_tokens - 1))
    inputs, targets = batch_of(n_tokens, block_size, batch_size, seed, step)
    assert inputs.shape == targets.shape == (batch_size, block_size)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    assert torch.equal(inputs[:, 1:], inputs[:, :-1] + 1)
    assert torch.equal(targets, inputs + 1)
    assert int(inputs.min()) >= 0
    assert int(targets.max()) < n_tokens


@given(lengths, st.data(), seeds, st.integers(0, 1000))
def test_the_windows_of_an_epoch_are_disjoint_and_cover_the_text(
    n_tokens: int, data: st.DataObject, seed: int, epoch: int
) -> None:
    block_size = data.draw(st.integers(1, n_tokens - 1))
    per_epoch = max(1, (n_tokens - block_size) // block_size)
    windows = batch_of(n_tokens, block_size, per_epoch, seed, epoch).inputs  # the batch is exactly one epoch
    places = windows.flatten().tolist()
    assert len(set(places)) == len(places)
    assert n_tokens - len(places) < 2 * block_size  # only the two ends can be left out


def test_over_the_epochs_every_place_is_a_start_equally_often() -> None:
    n_tokens, block_size, batch_size, steps = 60, 10, 50, 400
    starts = Counter[int]()
    for step in range(steps):
        starts.update(batch_of(n_tokens, block_size, batch_size, 3, step).inputs[:, 0].tolist())
    expected = steps * batch_size / (n_tokens - block_size)
    assert set(starts) == set(range(n_tokens - block_size))
    # windows come in fives that exclude each other, which makes the counts a little steadier than independent ones
    assert all(abs(count - expected) < 5 * expected**0.5 for count in starts.values()), starts


def test_the_order_differs_between_epochs_and_seeds() -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        starts = batch_of(5000, 100, 49, seed, epoch).inputs[:, 0]
        return tuple(((starts - starts[0]) // 100 % 49).tolist())

    orders = {order(seed, epoch) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    neighbors = [int(b == a + 1) for row in orders for a, b in pairwise(row)]
    assert sum(neighbors) < 0.1 * len(neighbors)  # a shuffle puts 1 in 49 neighbors side by side


@given(seeds, st.integers(0, 1000))
def test_a_batch_depends_on_nothing_but_its_arguments(seed: int, step: int) -> None:
    torch_state, first = torch.random.get_rng_state(), batch_of(5000, 16, 4, seed, step)
    batch_of(5000, 16, 4, seed, step + 1)
    again = batch_of(5000, 16, 4, seed, step)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(torch.random.get_rng_state(), torch_state)


@given(lengths, st.integers(1, 500), st.integers(1, 8))
def test_evaluation_counts_every_target_once_whatever_the_batch_size(
    n_tokens: int, block_size: int, batch_size: int
) -> None:
    counted: list[int] = []
    for inputs, targets in evaluation_batches(TEXT[:n_tokens], block_size=block_size, batch_size=batch_size):
        assert inputs.shape == targets.shape
        assert inputs.shape[1] == block_size
        assert len(inputs) <= batch_size
        assert int(inputs.min()) >= 0  # filling is a token too: a model can look it up
        here = targets != IGNORED
        assert torch.equal(targets[here], inputs[here] + 1)
        assert here[:, 0].all()  # no row is all filling
        counted += targets[here].tolist()
    assert counted == list(range(1, n_tokens))


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 8))
def test_a_limit_takes_whole_windows_spread_over_the_text(limit: int, block_size: int, batch_size: int) -> None:
    batches = list(evaluation_batches(TEXT, block_size=block_size, batch_size=batch_size, limit=limit))
    targets = torch.cat([batch.targets for batch in batches])
    counted = targets[targets != IGNORED].tolist()
    assert len(set(counted)) == len(counted) <= max(limit, block_size)
    if len(targets) > 1:
        gaps = targets[:, 0].diff()
        assert int(gaps.max() - gaps.min()) <= block_size
        assert int(targets[-1, 0] + gaps.max()) >= len(TEXT) - block_size  # the next one would lie beyond the end


def test_too_few_tokens_are_the_callers_mistake() -> None:
    with pytest.raises(AssertionError, match="block_size 8"):
        batch_of(8, 8, 1, 0, 0)
    with pytest.raises(AssertionError):
        next(evaluation_batches(TEXT[:1], block_size=8, batch_size=1))


def test_an_end_belongs_to_the_document_that_it_ends() -> None:
    inputs = torch.tensor([[5, 5, 9, 5, 9, 9, 5], [9, 5, 5, 5, 5, 5, 9]])
    expected = torch.tensor([[0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]])
    assert torch.equal(document_numbers(inputs, 9), expected)
