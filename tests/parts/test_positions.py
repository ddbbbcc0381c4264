"""Positions against their papers, and the laws they are chosen for."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clearhead.parts.positions import (
    POSITIONS,
    AlibiPositions,
    PositionOptions,
    RotaryPositions,
    alibi_slopes,
    relative_position_buckets,
    sinusoids,
)

CPU = torch.device("cpu")
OPTIONS = PositionOptions(d_model=16, n_heads=2, block_size=8, rotary_width=8)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("block_size", "d_model", "base"), [(7, 6, 10_000.0), (40, 16, 500.0)])
def test_sinusoids_are_the_formula(block_size: int, d_model: int, base: float) -> None:
    expected = [
        [
            math.sin(position / base ** (column / d_model))
            if column % 2 == 0
            else math.cos(position / base ** ((column - 1) / d_model))
            for column in range(d_model)
        ]
        for position in range(block_size)
    ]
    torch.testing.assert_close(
        sinusoids(block_size, d_model, base), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(
    ("n_heads", "exponents"),
    [
        (1, [8]),
        (4, [2, 4, 6, 8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (6, [2, 4, 6, 8, 1, 3]),  # the published code: every other slope of the next power of two
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
    ],
)
def test_alibi_slopes_are_the_papers(n_heads: int, exponents: list[float]) -> None:
    torch.testing.assert_close(alibi_slopes(n_heads), torch.tensor([2.0**-e for e in exponents], dtype=torch.float64))


def test_alibi_takes_a_heads_slope_for_each_token_of_distance() -> None:
    positions = AlibiPositions(OPTIONS)
    bias = positions.bias(range(3, 5), range(5), CPU)
    slopes = alibi_slopes(2).float()
    expected = -slopes[:, None, None] * torch.tensor([[3, 2, 1, 0, 1], [4, 3, 2, 1, 0]])
    torch.testing.assert_close(bias, expected)
    rows = torch.tensor([[2, 3, 4], [-1, 0, 1]])
    assert positions.bias(rows, rows, CPU).shape == (2, 2, 3, 3)
    torch.testing.assert_close(positions.bias(rows, rows, CPU)[1, :, 1:, 1:], positions.bias(range(2), range(2), CPU))


@given(st.integers(0, 300), st.integers(0, 300), st.integers(-200, 200))
def test_rotary_scores_depend_on_the_distance_alone(query_at: int, key_at: int, shift: int) -> None:
    rotary = RotaryPositions(OPTIONS)
    query, key = draw(1, 2, 1, 8), draw(1, 2, 1, 8, seed=1)

    def score(q: int, k: int) -> Tensor:
        turned = [rotary.rotate(torch.tensor([[position]]), CPU)(vector) for position, vector in ((q, query), (k, key))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(query_at, key_at), score(query_at + shift, key_at + shift), rtol=0, atol=5e-4)


def test_rotary_turns_pairs_by_the_papers_angles() -> None:
    width, base, position = 8, 100.0, 5
    x = draw(1, 1, 1, width)
    rotated = (
        RotaryPositions(replace(OPTIONS, rotary_width=width, rope_theta=base))
        .rotate(range(position, position + 1), CPU)(x)
        .flatten()
    )
    numbers = torch.complex(x.flatten()[: width // 2], x.flatten()[width // 2 :])
    angles = torch.tensor([position * base ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    turned = numbers * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(rotated, torch.cat((turned.real, turned.imag)), rtol=0, atol=1e-5)


def test_rotary_keeps_lengths_and_leaves_the_first_token_alone() -> None:
    x = draw(2, 2, 9, 8)
    turned = RotaryPositions(OPTIONS).rotate(range(9), CPU)(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert not torch.allclose(turned[:, :, 1:], x[:, :, 1:])


@pytest.mark.parametrize("kind", POSITIONS)
def test_a_range_and_a_tensor_of_positions_say_the_same(kind: str) -> None:
    positions = POSITIONS[kind](replace(OPTIONS, block_size=12)).double()
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    query, key = range(3, 9), range(9)
    rows, keys = torch.arange(3, 9).expand(2, -1), torch.arange(9).expand(2, -1)
    x, heads = draw(2, 6, 16), draw(2, 2, 6, 8)
    assert torch.equal(positions.add(x, query), positions.add(x, rows))
    by_range, by_row = positions.rotate(query, CPU), positions.rotate(rows, CPU)
    assert (by_range is None) == (by_row is None)
    if by_range and by_row:
        assert torch.equal(by_range(heads), by_row(heads))
    bias, bias_by_row = positions.bias(query, key, CPU), positions.bias(rows, keys, CPU)
    if bias is not None and bias_by_row is not None:
        assert torch.equal(bias.expand(2, -1, -1, -1), bias_by_row)


def test_only_tables_end() -> None:
    assert {kind for kind, part in POSITIONS.items() if part.bounded} == {"learned", "sinusoidal"}


@pytest.mark.parametrize(("n_buckets", "distance"), [(32, 128), (8, 20), (6, 9)])
def test_distances_are_divided_as_t5_does(n_buckets: int, distance: int) -> None:
    """Half of the classes have one distance each, the rest are as wide as their logarithm says (arXiv 1910.10683)."""
    back = torch.arange(2 * distance)
    buckets, exact = relative_position_buckets(back, n_buckets, distance, causal=True), n_buckets // 2
    assert torch.equal(buckets[:exact], back[:exact])
    assert torch.equal(buckets, buckets.sort().values)
    assert set(buckets.tolist()) == set(range(n_buckets))
    assert bool((buckets[distance:] == n_buckets - 1).all())
    for step in range(exact, distance):
        bucket = math.log(step / exact) / math.log(distance / exact) * (n_buckets - exact)
        if abs(bucket - round(bucket)) > 1e-4:  # on the border between two, rounding decides
            assert buckets[step] == exact + int(bucket)
    assert bool((relative_position_buckets(-back, n_buckets, distance, causal=True) == 0).all())  # what nobody sees


def test_those_who_look_both_ways_have_classes_for_either() -> None:
    back = torch.arange(1, 60)
    behind, ahead = (relative_position_buckets(sign * back, 32, 128, causal=False) for sign in (1, -1))
    assert torch.equal(ahead, behind + 16)
    assert torch.equal(behind, relative_position_buckets(back, 16, 128, causal=True))


def test_rotary_positions_leave_the_rest_of_a_head_alone() -> None:
    x = draw(1, 2, 5, 12)
    turned = RotaryPositions(OPTIONS).rotate(range(5), CPU)(x)
    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert torch.equal(turned[..., :8], RotaryPositions(OPTIONS).rotate(range(5), CPU)(x[..., :8]))


@pytest.mark.parametrize("kind", POSITIONS)
def test_without_a_model_that_draws_them_weights_are_zero(kind: str) -> None:
    assert all(not parameter.any() for parameter in POSITIONS[kind](OPTIONS).parameters())
