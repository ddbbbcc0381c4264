"""Cached equals uncached: step by step, in chunks, ragged, reordered, refilled."""

import pytest
import torch
from law_models import (
    CHOICES,
    FIXED,
    OPTIONS,
    Choice,
    assert_same,
    make_model,
    name,
    pairs,
    possible,
    random_ids,
)

from clearhead.config import ModelConfig
from clearhead.parts import positions_from_lengths

every_choice = pytest.mark.parametrize("choice", CHOICES, ids=name)


def test_every_option_of_the_config_is_tried_or_held_fixed() -> None:
    assert OPTIONS.keys() | FIXED == ModelConfig.model_fields.keys()
    assert not OPTIONS.keys() & FIXED


def test_every_two_options_meet_in_some_choice() -> None:
    met = {frozenset(two) for choice in CHOICES for two in pairs(choice)}
    possible_pairs = {
        frozenset({(option, a), (other, b)})
        for option, values in OPTIONS.items()
        for other, others in OPTIONS.items()
        if option < other
        for a in values
        for b in others
        if possible({option: a, other: b})
    }
    assert met == possible_pairs


@every_choice
@torch.inference_mode()
def test_step_by_step_equals_at_once(choice: Choice) -> None:
    model, ids = make_model(**choice), random_ids(2, 20)
    cache = model.new_cache(2, 20)
    steps = torch.cat([model(ids[:, t : t + 1], cache=cache) for t in range(20)], dim=1)
    assert_same(steps, model(ids))


@every_choice
@torch.inference_mode()
def test_chunks_equal_at_once(choice: Choice) -> None:
    model, ids = make_model(**choice), random_ids(2, 20)
    cache = model.new_cache(2, 22)
    chunks = torch.cat([model(chunk, cache=cache) for chunk in ids.tensor_split((1, 7, 8, 15), dim=1)], dim=1)
    assert_same(chunks, model(ids))


@every_choice
@torch.inference_mode()
def test_ragged_rows_continue_from_their_own_last_position(choice: Choice) -> None:
    model, ids, lengths = make_model(**choice), random_ids(3, 12), [12, 3, 7]
    cache = model.new_cache(3, 18)
    positions = positions_from_lengths(torch.tensor(lengths), 12, side="left")
    logits = [model(ids, positions=positions, cache=cache)[:, -1]]
    more = random_ids(3, 6, seed=1)
    logits += [model(more[:, t : t + 1], cache=cache)[:, -1] for t in range(6)]
    for row, length in enumerate(lengths):
        alone = model(torch.cat((ids[row, 12 - length :], more[row]))[None])[0, length - 1 :]
        assert_same(torch.stack(logits)[:, row], alone)


@every_choice
@torch.inference_mode()
def test_reordered_rows_take_their_cache_along(choice: Choice) -> None:
    model, ids, order = make_model(**choice), random_ids(3, 10), torch.tensor([2, 0, 0])
    cache = model.new_cache(3, 10)
    model(ids[:, :6], cache=cache)
    cache.reorder(order)
    after = model(ids[order, 6:], cache=cache)
    assert_same(after, model(ids)[order, 6:])


@torch.inference_mode()
def test_a_cache_that_was_reset_is_as_good_as_new() -> None:
    model, ids = make_model(positions="rope", embedding_ngrams=3), random_ids(2, 9)
    cache = model.new_cache(2, 9)
    model(random_ids(2, 9, seed=1), cache=cache)
    cache.reset()
    assert cache.length == 0
    assert_same(model(ids, cache=cache), model(ids))


def test_a_full_cache_refuses_more() -> None:
    model = make_model()
    cache = model.new_cache(1, 4)
    with pytest.raises(AssertionError, match="holds 4 columns"):
        model(random_ids(1, 5), cache=cache)


@pytest.mark.parametrize("ragged", [False, True])
@torch.inference_mode()
def test_a_forward_that_fails_leaves_the_cache_as_it_was(ragged: bool) -> None:
    model, ids = make_model(positions="rope", embedding_ngrams=3), random_ids(2, 9)
    first = positions_from_lengths(torch.tensor([4, 3]), 4, side="left") if ragged else None
    cache, other = model.new_cache(2, 9), model.new_cache(2, 9)
    for used in (cache, other):
        model(ids[:, :4], positions=first, cache=used)
    for block in model.stack.blocks:
        failing = block.register_forward_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, 4:7], cache=cache)
        failing.remove()
        assert cache.length == 4
    with pytest.raises(AssertionError, match="holds 9 columns"):
        model(random_ids(2, 6), cache=cache)
    assert_same(model(ids[:, 4:], cache=cache), model(ids[:, 4:], cache=other))


def fail(*inputs: object) -> None:
    raise KeyboardInterrupt
