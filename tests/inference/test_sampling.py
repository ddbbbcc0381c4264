"""Laws of the sampling functions, over arbitrary logits."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.config import SamplingConfig
from clearhead.errors import UsageError
from clearhead.inference.requests import GenerationRequest, new_requests
from clearhead.inference.sampling import (
    DRAWN_AHEAD,
    draw,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
    row_seeds,
    sample,
)
from clearhead.inference.sampling_ahead import sample_ahead

# few distinct values, so that ties are common, and extreme ones
logit = st.sampled_from([-1e4, -30.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 30.0, 1e4])
rows = st.integers(1, 12).flatmap(lambda n: st.lists(st.lists(logit, min_size=n, max_size=n), min_size=1, max_size=3))
logits_of = rows.map(lambda row: torch.tensor(row, dtype=torch.float64))
share = st.floats(0, 1, exclude_min=True)


def kept(logits: Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in logits]


def ranked(row: Tensor) -> list[int]:
    """Ids, likeliest first, equal ones by id."""
    return sorted(range(len(row)), key=lambda token: (-row[token].item(), token))


@given(logits_of, st.integers(1, 14))
def test_top_k_keeps_exactly_the_k_likeliest_and_the_lowest_ids_of_equals(logits: Tensor, k: int) -> None:
    assert kept(keep_top_k(logits, k)) == [sorted(ranked(row)[:k]) for row in logits]


@given(logits_of, share)
def test_top_p_keeps_the_fewest_that_hold_p(logits: Tensor, p: float) -> None:
    for row, tokens in zip(logits, kept(keep_top_p(logits, p)), strict=True):
        order, probabilities = ranked(row), row.softmax(-1).tolist()
        assert tokens == sorted(order[: len(tokens)])
        held = list(itertools.accumulate(probabilities[token] for token in order))
        assert held[len(tokens) - 1] >= p - 2e-6
        assert len(tokens) == 1 or held[len(tokens) - 2] < p


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("p", "n"), [(0.4, 1), (0.41, 2), (0.7, 2), (0.71, 3), (0.9, 3), (0.95, 4), (1.0, 4), (1e-9, 1)]
)
def test_top_p_is_exact_at_the_boundary(p: float, n: int, dtype: torch.dtype) -> None:
    probabilities = torch.tensor([[0.2, 0.4, 0.1, 0.3]], dtype=dtype)
    assert kept(keep_top_p(probabilities.log() + 7, p)) == [sorted([1, 3, 0, 2][:n])]


@given(logits_of, st.floats(0, 1))
def test_min_p_keeps_what_is_likely_enough(logits: Tensor, min_p: float) -> None:
    for row, tokens in zip(logits, kept(keep_min_p(logits, min_p)), strict=True):
        share_of_best = (row - row.max()).exp()
        assert set(tokens) >= {token for token in range(len(row)) if share_of_best[token] >= min_p}
        assert set(tokens) <= {token for token in range(len(row)) if share_of_best[token] >= min_p * (1 - 1e-5)}
        assert int(row.argmax()) in tokens


@given(logits_of, st.floats(1, 100), st.integers(0, 2**12))
def test_the_penalty_never_raises_a_present_token(logits: Tensor, penalty: float, chosen: int) -> None:
    present = torch.tensor([[bool(chosen >> token & 1) for token in range(logits.shape[1])]] * len(logits))
    after = penalize_repetition(logits, present, penalty)
    assert (after[present] <= logits[present]).all()
    assert torch.equal(after[~present], logits[~present])


def test_the_penalty_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5, 11, generator=generator)
    ids = torch.randint(11, (5, 4), generator=generator)
    present = torch.zeros(5, 11, dtype=torch.bool).scatter_(1, ids, value=True)
    expected = transformers.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits.clone())
    torch.testing.assert_close(penalize_repetition(logits, present, 1.3), expected)


@given(
    logits_of,
    st.floats(0, 1, exclude_max=True, width=32),
    st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([1e-6, 0.1, 1.0, 10.0]),
            "top_k": st.none() | st.integers(1, 14),
            "top_p": st.none() | share,
            "min_p": st.none() | st.floats(0, 1),
            "repetition_penalty": st.sampled_from([1.0, 2.0, 1e6]),
        }
    ),
)
def test_there_is_always_something_to_draw(logits: Tensor, uniform: float, options: dict[str, float]) -> None:
    config = SamplingConfig.read(options)
    present = torch.zeros_like(logits, dtype=torch.bool)
    drawn = sample(logits.float(), config, torch.full((len(logits),), uniform), present)
    if config.top_k == 1:
        assert drawn.tolist() == [ranked(row)[0] for row in logits]
    assert all(0 <= token < logits.shape[1] for token in drawn.tolist())


@given(logits_of)
def test_draws_follow_the_probabilities(logits: Tensor) -> None:
    n = 500  # evenly spaced numbers must hit every token as often as its probability says
    probabilities = logits.softmax(-1)
    for row, expected in zip(logits, probabilities, strict=True):
        drawn = draw(row.expand(n, -1), (torch.arange(n) + 0.5) / n)
        frequencies = drawn.bincount(minlength=len(row)) / n
        assert (frequencies - expected).abs().max() <= 1.01 / n


@given(logits_of, st.floats(0, 1, exclude_max=True, width=32), st.integers(1, 12))
def test_a_removed_token_is_never_drawn(logits: Tensor, uniform: float, k: int) -> None:
    left = keep_top_k(logits, k)
    drawn = draw(left.float(), torch.full((len(logits),), uniform))
    assert left[torch.arange(len(logits)), drawn].isfinite().all()


def test_the_steps_come_in_the_documented_order() -> None:
    # the penalty unseats token 0 before top-k looks; temperature flattens before top-p counts
    logits, present = torch.tensor([[1.0, 0.9, 0.0]]), torch.tensor([[True, False, False]])
    config = SamplingConfig(repetition_penalty=2.0, top_k=1)
    assert sample(logits, config, torch.tensor([0.5]), present).item() == 1
    hot = SamplingConfig(temperature=100.0, top_p=0.6)
    assert sample(torch.tensor([[5.0, 4.0, -50.0]]), hot, torch.tensor([0.99])).item() == 1


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    assert sample(torch.tensor([[0.0, 3.0, 3.0]]), SamplingConfig(greedy=True), None).tolist() == [1]


def test_a_temperature_below_zero_is_refused_and_zero_is_greedy() -> None:
    with pytest.raises(UsageError, match="temperature"):
        SamplingConfig.read({"temperature": -1})
    assert SamplingConfig.read({"temperature": 0}).greedy


def numbers(prompts: list[list[int]], n: int, seed: int = 1) -> Tensor:
    """The tokens that rows draw from even odds over many tokens: their random numbers, in effect."""
    texts = new_requests(0, prompts, SamplingConfig(seed=seed, temperature=1.0))
    return torch.tensor([drawn(texts, torch.zeros(len(prompts), 10_000)) for _ in range(n)]).T


def drawn(texts: list[GenerationRequest], logits: Tensor) -> list[int]:
    """The next token of each text, from its logits (B, V)."""
    tokens = sample_ahead(texts, logits[:, None], torch.empty(len(texts), 0, dtype=torch.int64))[:, 0].tolist()
    for text, token in zip(texts, tokens, strict=True):
        text.append([token])
    return tokens


def test_a_rows_random_numbers_are_its_own() -> None:
    together = numbers([[1, 2], [3], [1, 2]], DRAWN_AHEAD + 5)
    assert torch.equal(together[1], numbers([[3]], DRAWN_AHEAD + 5)[0])
    assert torch.equal(together[[0, 2]], numbers([[1, 2]] * 3, DRAWN_AHEAD + 5)[:2])
    assert len({tuple(row.tolist()) for row in together}) == 3
    assert not torch.equal(together[1], numbers([[3]], DRAWN_AHEAD + 5, seed=2)[0])
    assert torch.equal(together[:, :7], numbers([[1, 2], [3], [1, 2]], 7))


def test_seeds_of_rows_differ_and_fit_a_generator() -> None:
    seeds = row_seeds(0, [[1], [1], [2], [1, 2], []])
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_penalty_sees_prompt_and_text() -> None:
    config = SamplingConfig(greedy=True, repetition_penalty=2.0)
    texts = new_requests(0, [[0], [1]], config)
    logits = torch.tensor([[3.0, 2.0, 0.5]]).expand(2, -1)
    assert drawn(texts, logits) == [1, 0]
    assert drawn(texts, logits) == [0, 0]  # 0 and 1 are both halved, so 0 leads again
