"""Rows in slots go on as they would alone, and nothing of them moves when others come and go."""

import pytest
import torch
from law_models import (
    CHOICES,
    NATIVE_CHOICES,
    WINDOW,
    Choice,
    assert_same,
    make_model,
    name,
    random_ids,
    slots_read,
)
from torch import Tensor

from clearhead.errors import InputError
from clearhead.models import DecoderLM
from clearhead.parts import SlotCache

LENGTHS = [12, 3, 7]


def read(model: DecoderLM, cache: SlotCache, slots: list[int], ids: Tensor, counts: list[int] | None = None) -> Tensor:
    """The logits of one call, whose columns are kept."""
    rows = cache.rows(slots, counts)
    logits: Tensor = model(ids, cache=rows)
    cache.keep(rows)
    return logits


def held(cache: SlotCache, slot: int) -> list[Tensor]:
    return [tensor[slot].clone() for tensor in cache.rows([slot]).keys_and_values]


@pytest.mark.parametrize("choice", CHOICES, ids=name)
@torch.inference_mode()
def test_rows_of_any_length_go_on_as_they_would_alone(choice: Choice) -> None:
    model, ids, texts = make_model(**choice), random_ids(3, 12), dict[int, Tensor]()
    cache, slots = slots_read(model, ids, LENGTHS, 20)
    texts |= {slot: ids[row, :length] for row, (slot, length) in enumerate(zip(slots, LENGTHS, strict=True))}
    calls: list[tuple[list[int], list[int] | None]] = [
        (slots, None),
        ([slots[2], slots[0]], [2, 0]),
        ([slots[1]], None),
        (slots[::-1], [1, 2, 1]),
    ]
    for number, (some, counts) in enumerate(calls):
        more = random_ids(len(some), 2, seed=number + 1)
        logits = read(model, cache, some, more, counts)
        for row, slot in enumerate(some):
            count = 2 if counts is None else counts[row]
            text = torch.cat((texts[slot], more[row, :count]))
            assert_same(logits[row, :count], model(text[None])[0, len(texts[slot]) :])
            texts[slot] = text


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::4], ids=name)
@torch.inference_mode()
def test_what_is_forgotten_was_never_read(choice: Choice) -> None:
    model, ids, counts = make_model(**choice), random_ids(3, 12), [2, 0, 5]
    cache, slots = slots_read(model, ids, LENGTHS, 20)
    kept = [ids[row, : length - less] for row, (length, less) in enumerate(zip(LENGTHS, counts, strict=True))]
    for slot, less, text in zip(slots, counts, kept, strict=True):
        cache.rollback(slot, less, text.tolist())
    more = random_ids(3, 4, seed=1)
    logits = read(model, cache, slots, more)
    for row, text in enumerate(kept):
        assert_same(logits[row], model(torch.cat((text, more[row]))[None])[0, len(text) :])


@pytest.mark.parametrize("choice", NATIVE_CHOICES[::6], ids=name)
@torch.inference_mode()
def test_a_copy_goes_on_as_its_source_would(choice: Choice) -> None:
    model, ids, more = make_model(**choice), random_ids(3, 12), random_ids(1, 3, seed=1)
    cache, slots = slots_read(model, ids, LENGTHS, 20)
    [target] = cache.take(1, 20)
    cache.copy(slots[2], target)
    assert torch.equal(read(model, cache, [target], more), read(model, cache, [slots[2]], more))


@pytest.mark.parametrize("positions", ["rope", "alibi", "none"])
@torch.inference_mode()
def test_columns_that_left_the_window_can_be_evicted(positions: str) -> None:
    model, ids = make_model(positions=positions, sliding_window=WINDOW, logit_ngrams=3), random_ids(3, 60)
    full, small = (slots_read(model, ids[:, :12], LENGTHS, capacity) for capacity in (60, 13))
    for t in range(12, 52):
        for slot in small[1]:
            if small[0].length(slot) == small[0].capacity:
                small[0].evict(slot, WINDOW - 1)
        step = ids[:, t : t + 1]
        assert_same(read(model, *small, step), read(model, *full, step))


@torch.inference_mode()
def test_nothing_of_a_row_moves_when_others_come_and_go() -> None:
    model = make_model(positions="rope")
    cache, slots = slots_read(model, random_ids(3, 12), LENGTHS, 20)
    cache.reserve(4, 20)
    before, places = [held(cache, slot) for slot in slots], [t.data_ptr() for t in cache.rows(slots).keys_and_values]
    cache.release([slots[1]])
    new = cache.take(2, 20)
    assert slots[1] in new, "a slot that is free is taken again"
    read(model, cache, new, random_ids(2, 9, seed=1))
    cache.release(new)
    assert [t.data_ptr() for t in cache.rows(slots).keys_and_values] == places
    for slot, tensors in ((slots[0], before[0]), (slots[2], before[2])):
        assert all(map(torch.equal, held(cache, slot), tensors))


@torch.inference_mode()
def test_a_slot_that_is_taken_again_is_as_good_as_new() -> None:
    model, ids = make_model(positions="rope", embedding_ngrams=3), random_ids(1, 9)
    cache, slots = slots_read(model, random_ids(2, 12, seed=1), [12, 5], 20)
    cache.release(slots)
    assert cache.free == 2
    assert_same(read(model, cache, cache.take(1, 20), ids), model(ids))


@torch.inference_mode()
def test_more_room_and_more_slots_keep_what_is_held() -> None:
    model, ids, more = make_model(positions="rope", logit_ngrams=2), random_ids(3, 12), random_ids(3, 3, seed=1)
    cache, slots = slots_read(model, ids, LENGTHS, 12)
    with pytest.raises(InputError, match="room for 12 columns and needs 15"):
        read(model, cache, slots, more)
    cache.reserve(0, 15)
    assert len({*cache.take(4, 15), *slots}) == 7
    logits = read(model, cache, slots, more)
    for row, length in enumerate(LENGTHS):
        assert_same(logits[row], model(torch.cat((ids[row, :length], more[row]))[None])[0, length:])


@torch.inference_mode()
def test_a_call_that_fails_leaves_the_rows_as_they_were() -> None:
    model, more = make_model(positions="rope", embedding_ngrams=2), random_ids(3, 2, seed=1)
    cache, slots = slots_read(model, random_ids(3, 12), LENGTHS, 20)
    expected = model(more, cache=cache.rows(slots))
    rows = cache.rows(slots)
    hook = model.stack.blocks[-1].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        model(more, cache=rows)
    hook.remove()
    assert rows.lengths == LENGTHS
    assert torch.equal(model(more, cache=rows), expected)


def fail(*inputs: object) -> None:
    raise ZeroDivisionError


@torch.inference_mode()
def test_rows_go_on_where_they_end_and_nowhere_else() -> None:
    model, more = make_model(positions="rope"), random_ids(3, 2, seed=1)
    cache, slots = slots_read(model, random_ids(3, 12), LENGTHS, 20)
    for counts in ([1, 2], [1, 2, 3], [1, 2, -1]):
        with pytest.raises(InputError, match="go on where they end"):
            model(more, cache=cache.rows(slots, counts))
    with pytest.raises(InputError, match="go on where they end"):
        model(more, positions=torch.zeros(3, 2, dtype=torch.int64), cache=cache.rows(slots))
