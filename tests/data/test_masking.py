"""Masked batches: what is chosen, what becomes of it, and what it depends on."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.config import ModelConfig
from clearhead.data import (
    IGNORED,
    Batch,
    Masking,
    Tokenizer,
    evaluation_batches,
    masked_evaluation_batches,
    masked_training_batch,
    training_batch,
)
from clearhead.inference import evaluate
from clearhead.models import build_model

V = 23
SPECIAL = frozenset({0, 7, 22})
MASK = 7
MASKING = Masking(MASK, V, SPECIAL, 0.15)
TEXT = np.random.default_rng(0).choice([i for i in range(V) if i != MASK], 4001).astype(np.uint16)  # a text has no mask

fractions = st.sampled_from([0.01, 0.15, 0.3, 0.5, 0.99])
seeds = st.integers(0, 2**32)


def masking(fraction: float) -> Masking:
    return Masking(MASK, V, SPECIAL, fraction)


def batch_of(step: int, *, seed: int = 1, block_size: int = 128, batch_size: int = 32, fraction: float = 0.15) -> Batch:
    return masked_training_batch(
        TEXT, block_size=block_size, batch_size=batch_size, seed=seed, step=step, masking=masking(fraction)
    )


def evaluated(batch_size: int, *, block_size: int = 50, limit: int | None = None, n_tokens: int = 4001) -> list[Batch]:
    return list(
        masked_evaluation_batches(
            TEXT[:n_tokens], block_size=block_size, batch_size=batch_size, masking=MASKING, limit=limit
        )
    )


def rows(batches: list[Batch]) -> list[tuple[list[int], list[int]]]:
    return [(i.tolist(), t.tolist()) for inputs, targets in batches for i, t in zip(inputs, targets, strict=True)]


def is_special(ids: torch.Tensor) -> torch.Tensor:
    return torch.isin(ids, torch.tensor(sorted(SPECIAL)))


def check(masked: Batch, ids: torch.Tensor, fraction: float) -> None:
    """Everything that holds of masked windows, whatever was drawn; `ids` are the windows before."""
    inputs, targets = masked
    chosen = targets != IGNORED
    assert inputs.shape == targets.shape == ids.shape
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[~chosen], ids[~chosen])
    assert torch.equal(targets[chosen], ids[chosen])
    assert not is_special(targets[chosen]).any()
    changed = inputs[chosen & (inputs != ids)]
    assert not is_special(changed[changed != MASK]).any()
    assert set(changed.tolist()) <= set(range(V))
    for n, n_chosen in zip((~is_special(ids)).sum(1).tolist(), chosen.sum(1).tolist(), strict=True):
        assert n_chosen in {max(min(1, n), math.floor(fraction * n)), max(min(1, n), math.ceil(fraction * n))}


@given(st.integers(1, 200), st.integers(1, 8), seeds, st.integers(0, 10**7), fractions)
def test_the_chosen_tokens_are_the_targets_and_nothing_else_is_touched(
    block_size: int, batch_size: int, seed: int, step: int, fraction: float
) -> None:
    plain = training_batch(TEXT, block_size=block_size, batch_size=batch_size, seed=seed, step=step).inputs
    batch = batch_of(step, seed=seed, block_size=block_size, batch_size=batch_size, fraction=fraction)
    check(batch, plain.reshape(batch.inputs.shape), fraction)


def test_every_second_step_cuts_the_windows_so_that_short_texts_are_learned_too() -> None:
    for block_size, widths in (
        (128, {128: 4, 64: 1, 32: 1, 16: 1, 8: 1}),
        (24, {24: 4, 12: 4}),
        (33, {33: 8}),
        (5, {5: 8}),
    ):
        batches = [batch_of(step, block_size=block_size, batch_size=4) for step in range(3, 11)]
        assert Counter(batch.inputs.shape[1] for batch in batches) == widths
        assert all(batch.inputs.numel() == 4 * block_size for batch in batches)
    assert len(batch_of(0).inputs) == 32, "the first step shows windows as they are"
    equal = np.full(4001, 5, dtype=np.uint16)
    cut = masked_training_batch(equal, block_size=128, batch_size=32, seed=1, step=1, masking=MASKING).targets
    assert len({tuple(row) for row in cut.tolist()}) == 64, "each row has a mask of its own"


def test_chosen_tokens_are_hidden_exchanged_or_left_as_bert_does() -> None:
    fates, expected, n_rows, n_chosen = Counter[str](), 0.0, 0, 0
    for step in range(100):
        plain = training_batch(TEXT, block_size=128, batch_size=32, seed=1, step=step).inputs
        inputs, targets = batch_of(step)
        chosen = targets != IGNORED
        n_ordinary = (~is_special(plain.reshape(inputs.shape))).sum(1)
        expected += float((0.15 * n_ordinary).clamp(min=1).sum())  # every row here has a token that can be chosen
        n_rows, n_chosen = n_rows + len(inputs), n_chosen + int(chosen.sum())
        hidden, same = inputs[chosen] == MASK, inputs[chosen] == targets[chosen]
        fates.update(hidden=int(hidden.sum()), same=int(same.sum()), other=int((~hidden & ~same).sum()))
    assert abs(n_chosen - expected) < 5 * 0.5 * math.sqrt(n_rows)  # rounding by chance is off by a coin's toss at most
    for fate, share in (("hidden", 0.8), ("other", 0.1), ("same", 0.1)):
        assert abs(fates[fate] - share * n_chosen) < 5 * math.sqrt(n_chosen * share * (1 - share)), fates


def test_every_other_token_is_as_likely_to_be_put_in_a_tokens_place() -> None:
    put = Counter[tuple[int, int]]()
    for step in range(200):
        inputs, targets = batch_of(step, fraction=0.9)
        exchanged = (targets != IGNORED) & (inputs != targets) & (inputs != MASK)
        put.update(zip(targets[exchanged].tolist(), inputs[exchanged].tolist(), strict=True))
    ordinary = [i for i in range(V) if i not in SPECIAL]
    assert set(put) == {(a, b) for a in ordinary for b in ordinary if a != b}
    for token in ordinary:
        counts = [put[token, other] for other in ordinary if other != token]
        expected = sum(counts) / len(counts)
        chi_squared = sum((count - expected) ** 2 / expected for count in counts)
        degrees = len(counts) - 1
        assert chi_squared < degrees + 6 * math.sqrt(2 * degrees), (token, counts)


def test_every_place_is_as_likely_to_be_chosen() -> None:
    ids = np.full(4001, 5, dtype=np.uint16)
    times, n_rows = {width: torch.zeros(width) for width in (64, 32, 16, 8)}, Counter[int]()
    for step in range(200):
        targets = masked_training_batch(ids, block_size=64, batch_size=32, seed=1, step=step, masking=MASKING).targets
        times[targets.shape[1]] += (targets != IGNORED).sum(0)
        n_rows[targets.shape[1]] += len(targets)
    for width, counts in times.items():
        expected = n_rows[width] * 0.15
        assert float(counts.sum()) == pytest.approx(width * expected, rel=0.02)
        assert float((counts - expected).abs().max()) < 5 * math.sqrt(expected), counts


def test_a_window_that_comes_again_is_masked_in_another_way() -> None:
    ids = np.full(200, 5, dtype=np.uint16)  # all windows are equal
    masks = {
        tuple((row != IGNORED).tolist())
        for seed in range(3)
        for step in range(0, 20, 2)
        for row in masked_training_batch(
            ids, block_size=100, batch_size=8, seed=seed, step=step, masking=MASKING
        ).targets
    }
    assert len(masks) == 3 * 10 * 8


@given(seeds, st.integers(0, 1000))
def test_a_batch_depends_on_nothing_but_its_arguments(seed: int, step: int) -> None:
    before, numpy_before = torch.random.get_rng_state(), repr(np.random.get_state())
    first = batch_of(step, seed=seed)
    batch_of(step + 1, seed=seed)
    again = batch_of(step, seed=seed)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert repr(np.random.get_state()) == numpy_before


@given(st.integers(2, 300), st.integers(1, 400), st.integers(1, 8))
@settings(max_examples=50)
def test_evaluation_masks_the_windows_in_order_and_shows_no_filling(
    n_tokens: int, block_size: int, batch_size: int
) -> None:
    text = torch.from_numpy(TEXT[: n_tokens - 1].astype(np.int64))  # all but the last: a target of next-token windows
    batches = evaluated(batch_size, block_size=block_size, n_tokens=n_tokens)
    assert all(len(batch.inputs) <= batch_size for batch in batches)
    windows = torch.split(text, block_size)
    rows = [Batch(i[None], t[None]) for inputs, targets in batches for i, t in zip(inputs, targets, strict=True)]
    assert len(rows) == len(windows)
    for masked, window in zip(rows, windows, strict=True):
        check(masked, window[None], 0.15)


def test_evaluation_masks_in_the_same_proportions() -> None:
    fates = Counter[str]()
    for inputs, targets in evaluated(16, block_size=20):
        chosen = targets != IGNORED
        hidden, same = inputs[chosen] == MASK, inputs[chosen] == targets[chosen]
        fates.update(all=int(chosen.sum()), hidden=int(hidden.sum()), same=int(same.sum()))
    for fate, share in (("hidden", 0.8), ("same", 0.1)):
        assert abs(fates[fate] - share * fates["all"]) < 4 * math.sqrt(fates["all"] * share * (1 - share)), fates


@pytest.mark.parametrize("batch_size", [2, 3, 64])
def test_a_held_out_mask_does_not_depend_on_the_batch_size(batch_size: int) -> None:
    assert rows(evaluated(batch_size)) == rows(evaluated(1))


@given(st.integers(1, 500), st.integers(4, 64), st.integers(1, 8))
@settings(max_examples=30)
def test_a_limit_leaves_windows_out_and_the_others_as_they_are(limit: int, block_size: int, batch_size: int) -> None:
    whole = rows(evaluated(5, block_size=block_size, n_tokens=400))
    some = rows(evaluated(batch_size, block_size=block_size, limit=limit, n_tokens=400))
    plain = evaluation_batches(TEXT[:400], block_size=block_size, batch_size=batch_size, limit=limit)
    assert len(some) == sum(len(batch.inputs) for batch in plain)
    left = iter(whole)
    assert all(row in left for row in some)  # in order


def test_the_held_out_loss_is_one_number_whatever_the_batch_size() -> None:
    shape = {"architecture": "encoder", "vocab_size": V, "block_size": 24, "n_layers": 1, "n_heads": 2, "d_model": 16}
    model = build_model(ModelConfig.read(shape, {"positions": "rope"}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    results = [evaluate(model, evaluated(n, block_size=24, n_tokens=1000)) for n in (1, 3, 8, 100)]
    assert {result.tokens for result in results} == {results[0].tokens}
    assert all(result.loss == pytest.approx(results[0].loss, rel=1e-6) for result in results)


@pytest.mark.parametrize("fraction", [0.001, 0.15])
def test_a_row_has_a_target_if_it_can(fraction: float) -> None:
    ids = np.array([0] * 40 + [5] + [0] * 41, dtype=np.uint8)  # one token that is not special
    for batch in masked_evaluation_batches(ids, block_size=81, batch_size=1, masking=masking(fraction)):
        assert batch.targets[batch.targets != IGNORED].tolist() == [5]
    nothing = np.zeros(50, dtype=np.uint8)
    batch = masked_training_batch(nothing, block_size=8, batch_size=4, seed=0, step=0, masking=masking(fraction))
    assert (batch.targets == IGNORED).all()
    assert (batch.inputs == 0).all()


def test_a_tokenizer_says_what_is_special() -> None:
    tokenizer = Tokenizer.characters("abc", end=True, pad=True, mask=True)
    masking = Masking.of(tokenizer, 0.2)
    assert tokenizer.mask is not None
    assert masking == Masking(tokenizer.mask, tokenizer.vocab_size, frozenset({3, 4, 5}), 0.2)
    alone = Tokenizer.characters("abc", mask=True)
    assert Masking.of(alone, 0.2).special == {3}
    with pytest.raises(AssertionError, match="needs a mask"):
        Masking.of(Tokenizer.characters("abc"), 0.2)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [((7, 9, {1}, 0.1), "never chosen"), ((1, 9, {1, 9}, 0.1), "no token of"), ((1, 3, {1, 2}, 0.1), "take its place")],
)
def test_a_masking_that_cannot_be_is_the_callers_mistake(arguments: tuple[int, int, set[int], float], why: str) -> None:
    mask, vocab_size, special, fraction = arguments
    with pytest.raises(AssertionError, match=why):
        Masking(mask, vocab_size, frozenset(special), fraction)
