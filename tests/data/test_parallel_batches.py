import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.config import DataConfig
from clearhead.data import (
    IGNORED,
    EncodedPairs,
    PairBatch,
    PairBatches,
    Tokenizer,
    evaluation_pair_batches,
    prepare_pairs,
    read_pairs,
)
from clearhead.data.parallel.encoded import Rows
from clearhead.errors import DataError

END, PAD, START, FIRST = 0, 1, 2, 10
Lengths = list[tuple[int, int]]


def pairs_of(lengths: Lengths) -> EncodedPairs:
    """Pairs of so many tokens, ends among them. A token of pair i is FIRST + i, so that a batch says what is in it."""
    sides = []
    for side in (0, 1):
        sizes = np.array([pair[side] for pair in lengths])
        ids = np.repeat(np.arange(len(lengths)) + FIRST, sizes)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        ids[offsets[1:] - 1] = END
        sides.append(Rows(ids.astype(np.uint16), offsets))
    return EncodedPairs(*sides)


def batches_of(lengths: Lengths, room: int, seed: int = 1, longest: int = 100) -> PairBatches:
    return PairBatches(pairs_of(lengths), room=room, longest=longest, pad=PAD, start=START, seed=seed)


def members(batch: PairBatch, lengths: Lengths) -> list[int]:
    """Which pairs are in a batch, told from their content; every number of the batch is checked against them."""
    source, inputs, targets = batch
    assert source.dtype == inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape
    assert len(source) == len(inputs)
    numbers = []
    for row in range(len(source)):
        there = {int(i) - FIRST for part in batch for i in part[row].tolist() if i >= FIRST}
        assert len(there) <= 1
        n_source, n_target = (int((part[row] >= 0).sum() - (part[row] == PAD).sum()) for part in (source, targets))
        pair = there.pop() if there else lengths.index((n_source, n_target))
        token = FIRST + pair
        n_source, n_target = lengths[pair]
        wide_source, wide_target = source.shape[1], targets.shape[1]
        assert source[row].tolist() == [token] * (n_source - 1) + [END] + [PAD] * (wide_source - n_source)
        assert inputs[row].tolist() == [START] + [token] * (n_target - 1) + [PAD] * (wide_target - n_target)
        assert targets[row].tolist() == [token] * (n_target - 1) + [END] + [IGNORED] * (wide_target - n_target)
        numbers.append(pair)
    assert int((source != PAD).sum(1).max()) == source.shape[1]  # no column is all padding
    assert int((targets != IGNORED).sum(1).max()) == targets.shape[1]
    return numbers


def size(batch: PairBatch) -> int:
    return batch.source.numel() + batch.inputs.numel()


sizes = st.integers(2, 12)
lengths_of_pairs = st.lists(st.tuples(sizes, sizes), min_size=1, max_size=60)
rooms = st.integers(4, 200)
seeds = st.integers(0, 2**63 - 1)


@given(lengths_of_pairs, rooms, seeds, st.integers(0, 10**6))
def test_an_epoch_has_every_pair_once(lengths: Lengths, room: int, seed: int, epoch: int) -> None:
    batches = batches_of(lengths, room, seed)
    epoch_batches = [batches(epoch * batches.n_batches + i) for i in range(batches.n_batches)]
    numbers = [pair for batch in epoch_batches for pair in members(batch, lengths)]
    assert sorted(numbers) == list(range(len(lengths)))
    assert all(size(batch) <= room or len(batch.source) == 1 for batch in epoch_batches)
    real = sum(map(sum, lengths))
    assert batches.padding == pytest.approx(1 - real / sum(map(size, epoch_batches)), abs=1e-12)
    assert batches.n_too_long == 0


@given(lengths_of_pairs, rooms)
def test_batches_are_as_large_as_the_room_allows(lengths: Lengths, room: int) -> None:
    """An independent cut: one pair after the other, in the order of lengths, as long as the batch fits."""
    ordered = sorted(lengths, key=lambda pair: (pair[1], -pair[0] if pair[1] % 2 else pair[0]))
    expected: list[Lengths] = [[]]
    for pair in ordered:
        grown = [*expected[-1], pair]
        if expected[-1] and len(grown) * (max(s for s, _ in grown) + max(t for _, t in grown)) > room:
            expected.append([])
        expected[-1].append(pair)
    batches = batches_of(lengths, room)
    cut = [members(batches(i), lengths) for i in range(batches.n_batches)]
    assert sorted(sorted(lengths[i] for i in batch) for batch in cut) == sorted(map(sorted, expected))


@given(lengths_of_pairs, rooms, seeds, st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_a_batch_depends_on_nothing_but_its_step(lengths: Lengths, room: int, seed: int, steps: list[int]) -> None:
    torch_state = torch.random.get_rng_state()
    used = batches_of(lengths, room, seed)
    for step in steps:
        for tensor, fresh in zip(used(step), batches_of(lengths, room, seed)(step), strict=True):
            assert torch.equal(tensor, fresh)
    assert torch.equal(torch.random.get_rng_state(), torch_state)


def test_the_order_differs_between_epochs_and_seeds() -> None:
    lengths = [(3 + i % 3, 4) for i in range(300)]  # many ties, some batches

    def epoch(seed: int, number: int) -> list[list[int]]:
        batches = batches_of(lengths, 90, seed)
        return [members(batches(number * batches.n_batches + i), lengths) for i in range(batches.n_batches)]

    epochs = [epoch(seed, number) for seed in range(3) for number in range(4)]
    assert len({tuple(map(tuple, numbers)) for numbers in epochs}) == len(epochs)
    together = Counter(frozenset(pair) for numbers in epochs for batch in numbers for pair in pairwise(sorted(batch)))
    assert together.most_common(1)[0][1] <= 9  # of twelve epochs; ties fixed would meet in all of them
    widths = [[max(lengths[i][0] for i in batch) for batch in numbers] for numbers in epochs]
    assert len({tuple(row) for row in widths}) == len(epochs)  # short and long batches take turns of their own
    n_falls = [sum(a > b for a, b in pairwise(row)) for row in widths]
    assert min(n_falls) >= 3


@given(lengths_of_pairs, st.integers(2, 12))
def test_pairs_that_are_too_long_are_left_out_and_counted(lengths: Lengths, longest: int) -> None:
    short = [i for i, pair in enumerate(lengths) if max(pair) <= longest]
    if not short:
        with pytest.raises(DataError, match=f"every pair has a side of more than {longest} tokens; raise"):
            batches_of(lengths, 50, longest=longest)
        with pytest.raises(DataError, match=f"every pair has a side of more than {longest} tokens; raise"):
            next(evaluation_pair_batches(pairs_of(lengths), room=50, longest=longest, pad=PAD, start=START))
        return
    batches = batches_of(lengths, 50, longest=longest)
    assert batches.n_too_long == len(lengths) - len(short)
    numbers = [i for step in range(batches.n_batches) for i in members(batches(step), lengths)]
    assert sorted(numbers) == short
    evaluated = evaluation_pair_batches(pairs_of(lengths), room=50, longest=longest, pad=PAD, start=START)
    assert sorted(i for batch in evaluated for i in members(batch, lengths)) == short


@given(lengths_of_pairs, rooms, st.integers(1, 400))
def test_evaluation_has_every_pair_once_or_about_so_many_targets(lengths: Lengths, room: int, limit: int) -> None:
    pairs = pairs_of(lengths)
    batches = list(evaluation_pair_batches(pairs, room=room, longest=100, pad=PAD, start=START))
    assert sorted(i for batch in batches for i in members(batch, lengths)) == list(range(len(lengths)))
    assert all(size(batch) <= room or len(batch.source) == 1 for batch in batches)
    limited = evaluation_pair_batches(pairs, room=room, longest=100, pad=PAD, start=START, limit=limit)
    chosen = sorted(i for batch in limited for i in members(batch, lengths))
    mean = sum(target for _, target in lengths) / len(lengths)
    assert len(chosen) == min(len(lengths), max(1, round(limit / mean)))
    gaps = [b - a for a, b in pairwise([*chosen, len(lengths)])]
    assert chosen[0] == 0
    assert max(gaps) - min(gaps) <= 1  # spread evenly


def test_a_sentence_without_words_is_its_end() -> None:
    batch = batches_of([(1, 1)], 10)(0)
    assert [part.tolist() for part in batch] == [[[END]], [[START]], [[END]]]


@pytest.mark.campaign
def test_multi30k_is_hardly_padded() -> None:
    folder = os.environ.get("CLEARHEAD_DATA", "")
    if not folder or not (Path(folder) / "multi30k" / "train.de").exists():
        pytest.skip("CLEARHEAD_DATA names no folder with multi30k")
    some = (text for pair in read_pairs("multi30k:val") for text in pair)
    tokenizer = Tokenizer.train_bpe(some, 2000, end=True, pad=True, sentences=True)
    data = prepare_pairs(DataConfig(source="multi30k"), tokenizers=(tokenizer, tokenizer))
    batches = PairBatches(data.train, room=4096, longest=256, pad=data.pad, start=data.end, seed=1)
    assert batches.padding < 0.1
    assert batches.n_too_long == 0
    epoch = [batches(step) for step in range(batches.n_batches)]
    assert sum(len(batch.source) for batch in epoch) == 29_000
    padding = sum(int((part == data.pad).sum()) for batch in epoch for part in batch[:2])
    assert batches.padding == pytest.approx(padding / sum(map(size, epoch)), abs=1e-12)
    assert sum(int((batch.targets != IGNORED).sum()) for batch in epoch) == len(data.train.target.ids)
