import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from training_helpers import VOCAB, tiny_model

from clearhead.models import language_model
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


HEADS: dict[str, dict[str, Any]] = {
    "own": {},
    "tied": {"tie_embeddings": True},
    "bias": {"head_bias": True},
    "transformed": {"head_transform": True, "tie_embeddings": True, "scale_logits": True},
    "encoder": {"architecture": "encoder"},
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_a_head_in_chunks_gives_the_gradient_of_all_logits_at_once(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the head is made of, and however many rows it sees at a time."""
    monkeypatch.setattr(language_model, "IN_CACHE", rows * VOCAB)
    model = tiny_model(dropout=0.0, **HEADS[kind]).double()
    inputs, targets = ragged_batch(4, 4, 0.3)
    head_rows: list[int] = []
    model.get_submodule("lm_head").register_forward_hook(lambda *args: head_rows.append(len(args[2])))
    loss_fn = make_loss_fn(model.body, head=model.head, parameters=lambda: list(model.parameters()))
    loss = backward(loss_fn, (inputs, targets), tokens=counted_tokens(targets))
    assert max(head_rows) <= rows
    assert sum(head_rows[1:]) == counted_tokens(targets), "on a CPU the head sees no row that is not counted"
    actual = gradients(model)
    model.zero_grad()
    mean = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    mean.backward()  # type: ignore[no-untyped-call]
    expected = gradients(model)
    assert float(loss) == pytest.approx(mean.item(), rel=1e-6)
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-9, atol=1e-12)


def test_a_frozen_body_leaves_the_head_to_learn() -> None:
    model = tiny_model(dropout=0.0, tie_embeddings=False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("lm_head"))
    inputs, targets = ragged_batch(5, 3, 0.2)
    learned = [p for p in model.parameters() if p.requires_grad]
    loss_fn = make_loss_fn(model.body, head=model.head, parameters=lambda: learned)
    backward(loss_fn, (inputs, targets), tokens=counted_tokens(targets))
    assert {name for name in gradients(model) if gradients(model)[name].any()} == {"lm_head.weight"}
