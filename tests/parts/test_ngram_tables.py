"""Tables of n-grams against plain loops: which tokens come before which, which row is whose."""

import itertools
from collections import Counter

import pytest
import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.parts import DecoderCache, NgramTables, last_tokens
from clearhead.reference import ngram_row

V, N = 6, 4


def draw(*shape: int, below: int = V, seed: int = 0) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def by_loops(ids: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
    """(B, T, N): each token and those before it, one by one; rows of padding hold -1, as they mean nothing."""
    tokens = torch.zeros(*ids.shape, N, dtype=torch.int64)
    for b, t in itertools.product(range(ids.shape[0]), range(ids.shape[1])):
        if positions[b, t] < 0:
            tokens[b, t] = -1
            continue
        before = [column for column in range(t, -1, -1) if positions[b, column] >= 0]
        for distance, column in enumerate(before[:N]):
            if documents[b, column] == documents[b, t]:
                tokens[b, t, distance] = ids[b, column] + 1
    return tokens


@pytest.mark.parametrize("seed", range(10))
def test_last_tokens_are_those_that_loops_find(seed: int) -> None:
    """With padding anywhere, and with documents."""
    ids, real = draw(5, 12, seed=seed), draw(5, 12, below=3, seed=seed + 100) > 0
    positions = (real.cumsum(dim=1) - 1).where(real, -1)
    documents = draw(5, 12, below=3, seed=seed + 200).sort(dim=1).values
    everywhere = torch.arange(12).expand(5, -1)
    zeros = torch.zeros_like(ids)
    assert torch.equal(last_tokens(ids, N, range(12)), by_loops(ids, everywhere, zeros))
    assert torch.equal(last_tokens(ids, N, range(12), documents), by_loops(ids, everywhere, documents))
    for numbers in (None, documents):
        tokens = last_tokens(ids, N, positions, numbers)
        expected = by_loops(ids, positions, zeros if numbers is None else numbers)
        assert torch.equal(tokens.where(real[:, :, None], -1), expected)


@pytest.mark.parametrize("cuts", [(1, 2, 3, 4), (5,), (2, 9)])
@pytest.mark.parametrize("seed", range(4))
def test_in_pieces_as_at_once(cuts: tuple[int, ...], seed: int) -> None:
    """Rows may be padded on either side of every piece: what was padding is not what came before."""
    ids, real = draw(5, 12, seed=seed), draw(5, 12, below=3, seed=seed + 100) > 0
    positions = (real.cumsum(dim=1) - 1).where(real, -1)
    cache = DecoderCache([], 12, tokens=torch.zeros(5, N - 1, dtype=torch.int64))
    pieces = zip(ids.tensor_split(cuts, dim=1), positions.tensor_split(cuts, dim=1), strict=True)
    tokens = torch.cat([last_tokens(some, N, some_positions, cache=cache) for some, some_positions in pieces], dim=1)
    assert torch.equal(tokens[real], last_tokens(ids, N, positions)[real])


def test_a_cache_of_another_model_is_refused() -> None:
    for tokens, message in ((None, "without tables"), (torch.zeros(1, 2, dtype=torch.int64), "of 3 tokens, not 4")):
        with pytest.raises(AssertionError, match=message):
            last_tokens(draw(1, 3), N, range(3), cache=DecoderCache([], 3, tokens=tokens))


@pytest.mark.parametrize("rows", [1, 5, 49, 50, 343, 10_000])
def test_the_vectors_are_those_of_the_rows_that_loops_find(rows: int) -> None:
    config, tables = ModelConfig(vocab_size=V, ngram_rows=rows), NgramTables(V, 3, N, rows).double()
    torch.nn.init.normal_(tables.weight, generator=torch.Generator().manual_seed(0))
    tokens = last_tokens(draw(2, 40), N, range(40))
    expected = torch.zeros(2, 40, 3, dtype=torch.float64)
    for b, t in itertools.product(range(2), range(40)):
        start = 0
        for n in range(2, N + 1):
            gram = tokens[b, t, :n].flip(0).tolist()
            expected[b, t] += tables.weight.detach()[start + ngram_row(gram, config)]
            start += min((V + 1) ** n, rows)
    assert start == len(tables.weight)
    torch.testing.assert_close(tables(tokens).detach(), expected, rtol=0, atol=1e-12)


def test_each_ngram_has_a_row_of_its_own_where_there_are_enough() -> None:
    grams = torch.cartesian_prod(*[torch.arange(V + 1)] * 3)[None]  # (1, (V + 1)^3, 3)
    tables = NgramTables(V, 1, 3, 343)
    assert tables.sizes == [49, 343]
    rows = tables.rows_of(grams)[0]
    assert len(set(rows[:, 1].tolist())) == 343
    assert len(set(rows[:, 0].tolist())) == 49
    assert rows[:, 0].max() < 49 <= rows[:, 1].min(), "the two lengths share no row"


@pytest.mark.parametrize("rows", [4096, 5000])
def test_ngrams_that_share_rows_are_spread_as_evenly_as_by_chance(rows: int) -> None:
    grams = torch.cartesian_prod(*[torch.arange(1, 41)] * 3)[None]  # (1, 64000, 3)
    tables = NgramTables(40, 1, 3, rows)
    counts = Counter((tables.rows_of(grams)[0, :, 1] - tables.sizes[0]).tolist())
    expected = 64_000 / rows
    spread = sum((counts[row] - expected) ** 2 for row in range(rows)) / rows
    assert spread < 1.2 * expected, "the variance of a count by chance is its mean"


def test_a_fresh_table_learns() -> None:
    """It begins at zero; the gradient of a row that was looked up does not."""
    tables = NgramTables(V, 3, 2, 100)
    assert not tables.weight.any()
    tokens = last_tokens(torch.tensor([[1, 2, 1, 2]]), 2, range(4))
    tables(tokens).sum().backward()
    assert tables.weight.grad is not None
    counts = Counter(tables.rows_of(tokens).flatten().tolist())
    assert tables.weight.grad[:, 0].tolist() == [counts[row] for row in range(49)]
