"""Two masks meet in a decoder's layer: exchanged, they are refused in a sentence that names them."""

from typing import Any

import pytest
import torch
from pair_models import Side, make_translator, padded, some_ids
from torch import Tensor

from clearhead.models import EncoderDecoder
from clearhead.parts import attention_mask
from clearhead.parts.masks import Mask, refuse_exchanged

NAMED = "`mask`.*`memory_mask`.*exchanged"


def exchange(model: EncoderDecoder) -> None:
    """The planted bug: each of the two masks is passed in the other's place."""
    right = model.decoder.forward

    def wrong(x: Tensor, memory: Tensor, *, mask: Any, memory_mask: Any, **options: Any) -> Tensor:
        return right(x, memory, mask=memory_mask, memory_mask=mask, **options)

    model.decoder.forward = wrong  # type: ignore[assignment, method-assign]


def rows(width: int, side: Side | None, seed: int) -> Tensor:
    """Two sentences, one of them padded on this side."""
    other = some_ids(width if side is None else max(1, width - 3), seed=seed + 1)
    return padded([some_ids(width, seed=seed), other], width, side or "right")


@pytest.mark.parametrize("T_src", [7, 8, 2, 1])
@pytest.mark.parametrize("T", [7, 2])
@pytest.mark.parametrize("source_side", [None, "left", "right"])
@pytest.mark.parametrize("target_side", [None, "left", "right"])
@torch.inference_mode()
def test_an_exchange_is_refused(T: int, T_src: int, source_side: Side | None, target_side: Side | None) -> None:
    source, target = rows(T_src, source_side, 0), rows(T, target_side, 2)
    model = make_translator()
    model(source, target)  # as it should be
    exchange(model)
    with pytest.raises(AssertionError, match=NAMED):
        model(source, target)


@pytest.mark.parametrize("held", [0, 1, 4])
@pytest.mark.parametrize("T", [2, 3])
@pytest.mark.parametrize("source_side", [None, "left", "right"])
@torch.inference_mode()
def test_an_exchange_behind_a_cache_is_refused(held: int, T: int, source_side: Side | None) -> None:
    source, target = rows(held + T, source_side, 0), rows(held + T, None, 2)
    model = make_translator()
    memory, cache = model.encode(source), model.new_cache(2, 9)
    model.decode(target[:, :held], memory, cache=cache) if held else None
    exchange(model)
    with pytest.raises(AssertionError, match=NAMED):
        model.decode(target[:, held:], memory, cache=cache)


@pytest.mark.parametrize("T_src", [5, 4])
@torch.inference_mode()
def test_an_exchange_for_one_target_is_refused_where_the_source_is_padded(T_src: int) -> None:
    source = rows(T_src, "right", 0)
    model = make_translator()
    memory, cache = model.encode(source), model.new_cache(2, 9)
    model.decode(some_ids(2, 4), memory, cache=cache)
    exchange(model)
    with pytest.raises(AssertionError, match=NAMED):
        model.decode(some_ids(2, 1), memory, cache=cache)


CAUSAL = attention_mask(torch.arange(4)[None], torch.arange(4)[None], causal=True)
PADDING = attention_mask(range(4), torch.tensor([[0, 1, 2, -1]]), causal=False)
EVERYTHING = torch.ones(4, 4, dtype=torch.bool)
LONG = torch.ones(4, 6, dtype=torch.bool).tril(2)  # of four targets behind two that a cache holds


@pytest.mark.parametrize(
    ("mask", "memory_mask", "reason"),
    [
        (None, "causal", "causal mask has no place"),
        (None, CAUSAL, "different parts of the source"),
        (PADDING, None, "sees the future"),
        (EVERYTHING, None, "sees the future"),
        (EVERYTHING.tril(-1), None, "does not see itself"),
        (LONG, None, "4 queries and 6 keys"),
        (EVERYTHING[:3], None, "3 queries and 4 keys"),
        (None, LONG, "a mask of 6 keys"),
    ],
)
def test_each_wrong_mask_is_refused_by_itself(mask: Mask, memory_mask: Mask, reason: str) -> None:
    with pytest.raises(AssertionError, match=f"{reason}.*{NAMED}"):
        refuse_exchanged(mask, memory_mask, 4, 4)


def test_right_masks_are_let_pass() -> None:
    for mask in (None, "causal", CAUSAL):
        for memory_mask in (None, PADDING):
            refuse_exchanged(mask, memory_mask, 4, 4)
    refuse_exchanged(LONG, None, 4, 4, cached=True)
    with pytest.raises(AssertionError, match="sees the future"):
        refuse_exchanged(LONG.roll(1, -1), None, 4, 4, cached=True)
