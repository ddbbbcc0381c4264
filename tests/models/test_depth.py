"""Depth: one word of the config says where the norms stand, and what theory says of the gradients then holds.

Xiong et al. 2020 (arXiv 2002.04745, theorem 1): at the start, the gradient of the last feed-forward falls as
1 / sqrt(n_layers) in a pre-norm model and does not depend on the depth in a post-norm one, where gradients also get
smaller from each layer to the one before it. Hence the warm-up.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import ModelConfig, TrainConfig
from clearhead.models import EncoderDecoder
from clearhead.parts import Stack
from clearhead.training import build_optimizer, learning_rate

DEPTHS = (2, 6, 12)
VOCAB_SIZE, USED = 100, 10  # tokens, and those of them that occur
Norms = dict[str, list[float]]


def make(norm_position: str, depth: int, seed: int = 0) -> EncoderDecoder:
    """The published shape scaled down to a width of 32."""
    shape: dict[str, Any] = {
        "architecture": "encoder_decoder",
        "vocab_size": VOCAB_SIZE,
        "block_size": 16,
        "n_layers": depth,
        "n_heads": 4,
        "d_model": 32,
        "d_ff": 128,
        "norm_position": norm_position,
        "feedforward": "relu",
        "positions": "sinusoidal",
        "bias": True,
        "scale_embedding": True,
        "init": "xavier",
    }
    return EncoderDecoder(ModelConfig.read(shape), seed=seed)


def loss_of(model: EncoderDecoder, step: int) -> Tensor:
    """Of counting on from a random number, beside a source that says nothing."""
    generator = torch.Generator().manual_seed(step)
    source = torch.randint(USED, (8, 7), generator=generator)
    target = (torch.randint(USED, (8, 1), generator=generator) + torch.arange(9)) % USED
    return F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())


@cache
def gradients(norm_position: str, depth: int) -> Norms:
    """The norm of the gradient of every layer's last feed-forward matrix, the root of its mean square over seeds."""
    seeds = range(4)
    squares = {"encoder": [0.0] * depth, "decoder": [0.0] * depth}
    for seed in seeds:
        model = make(norm_position, depth, seed)
        loss_of(model, seed).backward()  # type: ignore[no-untyped-call]
        for name, mean_squares in squares.items():
            for layer, norm in enumerate(_norms(model.get_submodule(name))):
                mean_squares[layer] += norm * norm / len(seeds)
    return {name: [math.sqrt(square) for square in mean_squares] for name, mean_squares in squares.items()}


def _norms(stack: torch.nn.Module) -> Iterator[float]:
    assert isinstance(stack, Stack)
    for block in stack.blocks:
        gradient = block.get_parameter("feedforward.part.down.weight").grad
        assert gradient is not None
        yield gradient.norm().item()


@pytest.mark.parametrize("depth", DEPTHS)
def test_pre_norm_gradients_reach_every_layer(depth: int) -> None:
    """The residual stream's variance grows from one sublayer's worth to at most 1 + 3 n_layers of them.

    A norm divides the gradient by the root of that, so between two layers there is this factor, and chance.
    """
    for norms in gradients("pre", depth).values():
        assert all(math.isfinite(norm) for norm in norms)
        assert max(norms) / min(norms) < 1.5 * math.sqrt(1 + 3 * depth)


@pytest.mark.parametrize("depth", DEPTHS)
def test_post_norm_gradients_get_larger_towards_the_output(depth: int) -> None:
    """Each of a block's three norms halves the variance of what comes through it: that passes the gradient on too."""
    norms = gradients("post", depth)["decoder"]
    growth = (norms[-1] / norms[0]) ** (1 / (depth - 1))  # per layer
    assert 1.1 < growth < 2**1.5
    half = depth // 2
    assert sum(norms[half:]) > sum(norms[:half])
    assert all(math.isfinite(norm) and norm > 0 for norm in gradients("post", depth)["encoder"])


def test_the_last_layers_gradient_falls_with_depth_in_pre_norm_only() -> None:
    for norm_position, law in (("pre", math.sqrt(6)), ("post", 1.0)):
        shallow, deep = (gradients(norm_position, depth)["decoder"][-1] for depth in (2, 12))
        assert law / 1.5 < shallow / deep < law * 1.5, norm_position


def test_in_a_deep_model_they_differ_as_the_paper_says() -> None:
    pre, post = (gradients(norm_position, 12)["decoder"] for norm_position in ("pre", "post"))
    assert pre[0] > pre[-1]  # towards the input gradients do not vanish ...
    assert post[-1] > 4 * post[0]  # ... or do
    assert post[-1] > 2 * pre[-1]  # and a step at full rate would move the last layers far: hence the warm-up


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("norm_position", "warmup"), [("pre", 1), ("pre", 15), ("post", 15)])
def test_thirty_steps_of_twelve_layers(norm_position: str, warmup: int) -> None:
    model = make(norm_position, 12)
    config = TrainConfig.read(
        {
            "steps": 30,
            "learning_rate": 5e-3,
            "schedule": "inverse_sqrt",
            "warmup_steps": warmup,
            "max_grad_norm": math.inf,
        },
        {"beta2": 0.98, "adam_eps": 1e-9, "weight_decay": 0.0},
    )
    optimizer, losses = build_optimizer(model, config), []
    for step in range(config.steps):
        loss = loss_of(model, step)
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step(learning_rate(config, step))
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(VOCAB_SIZE), rel=0.02)
    assert max(losses) < losses[0] * 1.02
    assert sum(losses[-5:]) / 5 < (math.log(VOCAB_SIZE) + math.log(USED)) / 2  # it knows which tokens occur
