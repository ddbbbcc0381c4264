"""A mask is the rule, written out; the cheapest form that says the same is handed back."""

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.parts import (
    additive_from_allowed,
    allowed_from_additive,
    allowed_from_forbidden,
    attention_mask,
    forbidden_from_allowed,
    positions_from_lengths,
)
from clearhead.parts.masks import Mask, Positions

window_of = st.none() | st.integers(1, 9)
ranges = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))
batches = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.integers(-1, 9), min_size=n, max_size=n), min_size=2, max_size=2)
)


def may_attend(query: int, key: int, causal: bool, window: int | None) -> bool:
    """The rule."""
    if key < 0 or (causal and key > query):
        return False
    return window is None or query - key < window


def written_out(mask: Mask, shape: tuple[int, ...]) -> Tensor:
    """Any form of a mask as booleans of this shape, (B, T_q, T_k) or (T_q, T_k)."""
    if isinstance(mask, Tensor):
        assert mask.dtype == torch.bool
        return (mask.squeeze(1) if mask.dim() == 4 else mask).expand(shape)
    everything = torch.ones(shape, dtype=torch.bool)
    if mask == "causal":
        assert shape[-1] == shape[-2], "the fused kernel's triangle is aligned at the top left"
        return everything.tril()
    assert mask is None
    return everything


def brute_force(query: list[int], key: list[int], causal: bool, window: int | None) -> Tensor:
    return torch.tensor([[may_attend(q, k, causal, window) for k in key] for q in query])


@given(ranges, st.booleans(), window_of)
def test_ranges_against_the_rule(ends: tuple[int, int, int], causal: bool, window: int | None) -> None:
    """Keys start anywhere, queries are the last of them: a cache, with or without dropped columns."""
    dropped, before, new = ends
    key, query = range(dropped, dropped + before + new), range(dropped + before, dropped + before + new)
    window = window if causal else None
    mask = attention_mask(query, key, causal=causal, window=window)
    expected = brute_force([*query], [*key], causal, window)
    assert torch.equal(written_out(mask, expected.shape), expected)
    if expected.all():
        assert mask is None
    elif query == key and torch.equal(expected, torch.ones_like(expected).tril()):
        assert mask == "causal"


@given(ranges, st.integers(0, 9), st.booleans())
def test_any_two_ranges_against_the_rule(ends: tuple[int, int, int], start: int, causal: bool) -> None:
    key, query = range(ends[0], ends[0] + ends[2]), range(start, start + ends[1] + 1)
    expected = brute_force([*query], [*key], causal, None)
    assert torch.equal(written_out(attention_mask(query, key, causal=causal), expected.shape), expected)


@given(batches, batches, st.booleans(), window_of)
def test_positions_per_row_against_the_rule(
    queries: list[list[int]], keys: list[list[int]], causal: bool, window: int | None
) -> None:
    window = window if causal else None
    mask = attention_mask(torch.tensor(queries), torch.tensor(keys), causal=causal, window=window)
    rows = [brute_force(query, key, causal, window) for query, key in zip(queries, keys, strict=True)]
    assert isinstance(mask, Tensor)
    assert mask.shape == (2, 1, len(queries[0]), len(keys[0]))
    assert torch.equal(mask[:, 0], torch.stack(rows))


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("window", [None, 2])
def test_documents_do_not_see_each_other(per_row: bool, window: int | None) -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1, 5], [2, 2, 2, 2, 2, 2]])
    positions: Positions = torch.arange(6).expand(2, -1) if per_row else range(6)
    mask = attention_mask(positions, positions, causal=True, window=window, documents=documents)
    expected = brute_force([*range(6)], [*range(6)], True, window)
    same = torch.tensor([[[a == b for b in row] for a in row] for row in documents.tolist()])
    assert torch.equal(written_out(mask, (2, 6, 6)), expected & same)


def test_the_cheapest_forms() -> None:
    assert attention_mask(range(5), range(5), causal=True) == "causal"
    assert attention_mask(range(5), range(5), causal=True, window=5) == "causal"
    assert isinstance(attention_mask(range(5), range(5), causal=True, window=4), Tensor)
    assert attention_mask(range(7, 8), range(8), causal=True) is None
    assert attention_mask(range(7, 8), range(5, 8), causal=True, window=3) is None
    assert attention_mask(range(5), range(9), causal=False) is None
    assert isinstance(attention_mask(range(3, 5), range(5), causal=True), Tensor)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.sampled_from(["left", "right"]))
def test_padded_positions(lengths: list[int], side: Literal["left", "right"]) -> None:
    def row(length: int) -> list[int]:
        padding = [-1] * (7 - length)
        return [*padding, *range(length)] if side == "left" else [*range(length), *padding]

    assert positions_from_lengths(torch.tensor(lengths), 7, side=side).tolist() == [row(length) for length in lengths]


def test_the_other_ways_to_write_a_mask() -> None:
    allowed = torch.tensor([[True, False], [False, True]])
    assert torch.equal(allowed_from_forbidden(forbidden_from_allowed(allowed)), allowed)
    assert forbidden_from_allowed(allowed).tolist() == [[False, True], [True, False]]
    additive = additive_from_allowed(allowed, torch.float64)
    assert additive.dtype == torch.float64
    assert additive.tolist() == [[0, -torch.inf], [-torch.inf, 0]]
    assert torch.equal(allowed_from_additive(additive), allowed)
    for dtype in (torch.float32, torch.bfloat16):  # what transformers adds
        lowest = torch.where(allowed, 0.0, torch.finfo(dtype).min).to(dtype)
        assert torch.equal(allowed_from_additive(lowest), allowed)


def test_among_the_keys_that_positions_allow_only_those_named_are_seen() -> None:
    tree_mask, shape = torch.rand(2, 2, 5, generator=torch.Generator().manual_seed(0)) > 0.5, (2, 2, 5)
    assert torch.equal(
        written_out(attention_mask(range(3, 5), range(5), causal=False, tree_mask=tree_mask), shape), tree_mask
    )
    positions = torch.tensor([[0, 1, 1, 2, 2]]).expand(2, -1)
    assert torch.equal(
        written_out(attention_mask(positions[:, 3:], positions, causal=True, tree_mask=tree_mask), shape), tree_mask
    )
    earlier = written_out(attention_mask(positions[:, 1:3], positions, causal=True, tree_mask=tree_mask), shape)
    assert torch.equal(earlier, tree_mask & (torch.arange(5) < 3))
