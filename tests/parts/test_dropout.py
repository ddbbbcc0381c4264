"""Dropout: the right share is dropped, the mean stays, and a seed decides which."""

import math

import pytest
import torch
from torch import nn

from clearhead.parts import make_dropout
from clearhead.parts.dropout import dropout_mask

N = 400_000


def test_none_is_no_call() -> None:
    assert isinstance(make_dropout(0.0), nn.Identity)


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.5, 0.9])
def test_the_share_and_the_mean(probability: float) -> None:
    dropout, x = make_dropout(probability), torch.ones(N // 100, 100)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        y = dropout(x)
    share = float((y == 0).float().mean())
    assert abs(share - probability) < 5 * math.sqrt(probability * (1 - probability) / N)
    survivors = y[y != 0].unique()
    assert len(survivors) == 1
    assert float(survivors) == pytest.approx(1 / (1 - probability), rel=1e-4)


def test_numbers_are_dropped_independently_of_each_other() -> None:
    """Four decisions come from one draw, so neighbors are the ones to suspect."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        drops = (dropout_mask(torch.Size([N]), 0.5) == 0).float() * 2 - 1
    for distance in (1, 2, 3, 4, 5, 8):
        assert abs(float((drops[distance:] * drops[:-distance]).mean())) < 5 / math.sqrt(N)


@pytest.mark.parametrize("shape", [(1,), (3,), (7, 5), (2, 3, 4, 1), (0, 4)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    assert make_dropout(0.3)(torch.ones(shape)).shape == shape


def test_the_seed_decides() -> None:
    dropout, x = make_dropout(0.5), torch.ones(1000)
    outputs = []
    for seed in (1, 1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            outputs.append(dropout(x))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_the_gradient_takes_the_same_way() -> None:
    dropout, x = make_dropout(0.5), torch.full((1000,), 3.0, requires_grad=True)
    y = dropout(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient * 3, y.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_type_stays(dtype: torch.dtype) -> None:
    assert make_dropout(0.1)(torch.ones(8, dtype=dtype)).dtype == dtype


def test_evaluation_drops_nothing() -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(make_dropout(0.5).eval()(x), x)
