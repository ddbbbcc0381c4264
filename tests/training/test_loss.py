import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from training_helpers import VOCAB, tiny_model

from clearhead.training.loss import backward, counted_tokens, make_loss_fn, token_loss_sum


def ragged_batch(seed: int, rows: int, share_ignored: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(VOCAB, (rows, 6), generator=generator)
    targets = torch.randint(VOCAB, (rows, 6), generator=generator)
    ignored = torch.rand(rows, 6, generator=generator) < share_ignored
    return inputs, targets.masked_fill(ignored, -100)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_the_loss_of_one_token_is_minus_its_log_probability() -> None:
    logits = torch.tensor([[[1.0, 2.0, 0.5], [0.0, 0.0, 0.0]]])
    expected = math.log(math.e + math.e**2 + math.e**0.5) - 0.5
    assert float(token_loss_sum(logits, torch.tensor([[2, -100]]))[0]) == pytest.approx(expected)
    assert float(token_loss_sum(logits, torch.tensor([[2, 1]]))[0]) == pytest.approx(expected + math.log(3))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 7), parts=st.integers(1, 9), ignored=st.floats(0, 1))
def test_parts_give_the_whole_batchs_loss_and_gradient(seed: int, rows: int, parts: int, ignored: float) -> None:
    model = tiny_model(dropout=0.0).double()
    batch = ragged_batch(seed, rows, ignored)
    tokens = counted_tokens(batch[1])
    results = []
    for pieces in (1, parts):
        model.zero_grad()
        loss = backward(make_loss_fn(model), batch, tokens=tokens, parts=pieces)
        results.append((loss, gradients(model)))
    (whole, expected), (split, actual) = results
    torch.testing.assert_close(split, whole, rtol=1e-6, atol=1e-6)
    assert actual.keys() == expected.keys()
    for name in expected:  # the loss itself is float32, so this is float32's tolerance
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=1e-7)


def test_the_gradient_is_that_of_the_mean_over_counted_tokens() -> None:
    model = tiny_model(dropout=0.0)
    inputs, targets = ragged_batch(3, 4, 0.5)
    loss = backward(make_loss_fn(model), (inputs, targets), tokens=counted_tokens(targets), parts=2)
    actual = gradients(model)
    model.zero_grad()
    mean = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    mean.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, mean.detach())
    for name, expected in gradients(model).items():
        torch.testing.assert_close(actual[name], expected, rtol=1e-4, atol=1e-7)


def test_a_batch_without_a_counted_token_moves_nothing() -> None:
    model = tiny_model(dropout=0.0)
    inputs, targets = ragged_batch(0, 3, 2.0)
    assert counted_tokens(targets) == 0
    assert float(backward(make_loss_fn(model), (inputs, targets), tokens=0)) == 0
    assert all(not gradient.any() for gradient in gradients(model).values())
