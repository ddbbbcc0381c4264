"""The twin's backward pass, by hand, is autograd's through our parts."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from twin_cases import draw_config, draw_rows, randomized

from clearhead import reference
from clearhead.config import ModelConfig
from clearhead.models import make_attention, make_positions
from clearhead.parts import FEEDFORWARDS, NORMS, attention_mask
from clearhead.reference import Array, AttentionInputs, as_float64
from clearhead.training.loss import Smoothing, token_loss_sum

SEEDS = range(40)


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def close(actual: Array, expected: Tensor | None) -> None:
    assert expected is not None
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=0, atol=1e-10)


def same_gradients(gradients: dict[str, Array], part: nn.Module) -> None:
    expected = {name: parameter.grad for name, parameter in part.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        close(gradient, expected[name])


def numbers(x: Tensor) -> Array:
    array: Array = x.detach().numpy()
    return array


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_norms(kind: str, eps: float) -> None:
    part = randomized(NORMS[kind](12, eps), seed=1)
    x, d_output = draw(3, 5, 12), draw(3, 5, 12, seed=1).detach()
    part(x).backward(d_output)
    weights = as_float64(part.state_dict())
    close(reference.NORMS[kind].forward(numbers(x), weights, eps), part(x))
    gradients = reference.NORMS[kind].gradient(numbers(d_output), numbers(x), weights, eps)
    close(gradients.x, x.grad)
    same_gradients(gradients.weights, part)


@pytest.mark.parametrize("kind", FEEDFORWARDS)
@pytest.mark.parametrize("bias", [False, True])
def test_feedforward(kind: str, bias: bool) -> None:
    part = randomized(FEEDFORWARDS[kind](8, 20, bias=bias), seed=1)
    x, d_output = draw(2, 5, 8), draw(2, 5, 8, seed=1).detach()
    part(x).backward(d_output)
    weights = as_float64(part.state_dict())
    close(reference.feed_forward(numbers(x), weights, kind).output, part(x))
    gradients = reference.feedforward_gradient(numbers(d_output), numbers(x), weights, kind)
    close(gradients.x, x.grad)
    same_gradients(gradients.weights, part)


def transformer(choose: random.Random) -> ModelConfig:
    """A config whose attention is used."""
    while (config := draw_config(choose)).architecture == "bigram":
        continue
    return config


@pytest.mark.parametrize("seed", SEEDS)
def test_self_attention(seed: int) -> None:
    choose = random.Random(seed)
    config = transformer(choose)
    part = randomized(make_attention(config), seed)
    position_rows = draw_rows(choose, config.vocab_size, None)[1]  # (B, T)
    positions = torch.from_numpy(position_rows)
    B, T = position_rows.shape
    x, d_output = draw(B, T, config.d_model), draw(B, T, config.d_model, seed=1).detach()
    bias = draw(B, config.n_heads, T, T, seed=2)
    causal = choose.random() < 0.5
    turned = config.positions == "rope"
    rotate = make_positions(config, causal=causal).double().rotate(positions, x.device) if turned else None
    mask = attention_mask(positions, positions, causal=causal)
    output = part(x, mask=mask, rotate=rotate, bias=bias)
    output.backward(d_output)

    angles = reference.ROTATED["rope"](position_rows, config) if turned else None
    attended = AttentionInputs(reference.may_attend(position_rows, position_rows, causal=causal), angles, numbers(bias))
    weights = as_float64(part.state_dict())
    inputs = numbers(x), numbers(x), weights, config, attended
    close(reference.attend(*inputs).output, output)
    gradients = reference.attention_gradient(numbers(d_output), *inputs)
    close(gradients.x + gradients.memory, x.grad)
    close(gradients.bias, bias.grad)
    same_gradients(gradients.weights, part)


@pytest.mark.parametrize("seed", SEEDS)
def test_cross_attention(seed: int) -> None:
    choose = random.Random(seed)
    config = transformer(choose)
    part = randomized(make_attention(config), seed)
    positions, source_positions = (
        draw_rows(choose, config.vocab_size, None)[1] for _ in range(2)
    )  # (B, T), (B, T_src)
    x, d_output = draw(*positions.shape, config.d_model), draw(*positions.shape, config.d_model, seed=1).detach()
    memory = draw(*source_positions.shape, config.d_model, seed=2)
    mask = attention_mask(torch.from_numpy(positions), torch.from_numpy(source_positions), causal=False)
    output = part(x, memory, mask=mask)
    output.backward(d_output)

    attended = AttentionInputs(reference.may_attend(positions, source_positions, causal=False))
    weights = as_float64(part.state_dict())
    inputs = numbers(x), numbers(memory), weights, config, attended
    close(reference.attend(*inputs).output, output)
    gradients = reference.attention_gradient(numbers(d_output), *inputs)
    close(gradients.x, x.grad)
    close(gradients.memory, memory.grad)
    same_gradients(gradients.weights, part)


def logits_and_targets(V: int) -> tuple[Tensor, Tensor]:
    targets = torch.randint(V, (7,), generator=torch.Generator().manual_seed(0))
    targets[2] = reference.IGNORED
    return draw(7, V), targets


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("over", ["all", "others"])
def test_cross_entropy(share: float, over: str) -> None:
    logits, targets = logits_and_targets(5)
    loss = token_loss_sum(3 * logits, targets, Smoothing(share, over))[0] / (targets != reference.IGNORED).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    inputs = 3 * numbers(logits), targets.numpy(), share, over
    assert reference.cross_entropy(*inputs) == pytest.approx(loss.item(), rel=0, abs=1e-12)
    close(3 * reference.cross_entropy_gradient(*inputs), logits.grad)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
def test_cross_entropy_is_torchs(share: float) -> None:
    logits, targets = logits_and_targets(9)
    loss = F.cross_entropy(logits, targets, label_smoothing=share)
    loss.backward()  # type: ignore[no-untyped-call]
    inputs = numbers(logits), targets.numpy(), share
    assert reference.cross_entropy(*inputs) == pytest.approx(loss.item(), rel=0, abs=1e-12)
    close(reference.cross_entropy_gradient(*inputs), logits.grad)


def test_nothing_counted_is_no_loss_and_no_gradient() -> None:
    logits, targets = draw(3, 4), np.full(3, reference.IGNORED)
    assert reference.cross_entropy(numbers(logits), targets) == 0
    assert not reference.cross_entropy_gradient(numbers(logits), targets).any()
