"""Norms, feed-forwards, sublayers, and the words of the config that choose among parts."""

from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.config import GATED, ModelConfig
from clearhead.parts import (
    FEEDFORWARDS,
    NORMS,
    POSITIONS,
    Attention,
    Block,
    FeedForward,
    LayerNorm,
    LMHead,
    ParallelBlock,
    PlusOneRMSNorm,
    RMSNorm,
    Stack,
    Sublayer,
    Transform,
    make_dropout,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("option", "choices"),
    [("norm", NORMS), ("feedforward", FEEDFORWARDS), ("positions", POSITIONS)],
)
def test_the_words_of_the_config_are_the_keys(option: str, choices: dict[str, Any]) -> None:
    assert set(get_args(ModelConfig.model_fields[option].annotation)) == set(choices)


@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_norms_are_the_formulas(eps: float) -> None:
    x, weight, bias = 3 * draw(2, 5, 8) + 1, draw(8, seed=1), draw(8, seed=2)
    layer, rms = LayerNorm(8, eps).double(), RMSNorm(8, eps).double()
    layer.load_state_dict({"weight": weight, "bias": bias})
    rms.load_state_dict({"weight": weight})
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    expected = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    torch.testing.assert_close(rms(x), expected, rtol=1e-12, atol=1e-12)
    plus_one = PlusOneRMSNorm(8, eps).double()
    assert not plus_one.weight.any()
    plus_one.load_state_dict({"weight": weight - 1})
    torch.testing.assert_close(plus_one(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [RMSNorm, PlusOneRMSNorm])
@pytest.mark.parametrize("per_head", [False, True])
def test_under_autocast_on_a_cpu_a_norm_takes_fewer_passes_to_the_same_numbers(
    kind: type[RMSNorm], per_head: bool
) -> None:
    norm = kind(8, 0.1).double()
    norm.load_state_dict({"weight": draw(8, seed=1)})
    x = (3 * draw(2, 5, 4, 8) + 1).requires_grad_()
    upstream = draw(2, 5, 4, 8, seed=2)
    results, names = [], []
    for fast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=fast):
            y = norm(x.transpose(1, 2) if per_head else x)
        names.append(type(y.grad_fn).__name__)
        g = upstream.transpose(1, 2) if per_head else upstream
        results.append([y, *torch.autograd.grad(y, [x, norm.weight], g)])
    assert [name == "FewPassRMSNormBackward" for name in names] == [False, True]
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)


def test_the_gradient_of_a_norm_is_as_exact_where_autocast_is_still_on() -> None:
    norm, x, upstream = RMSNorm(64), draw(3, 64).float().requires_grad_(), draw(3, 64, seed=2).float()
    with torch.autocast("cpu", torch.bfloat16):
        (gradient,) = torch.autograd.grad(norm(x), x, upstream)
    (expected,) = torch.autograd.grad(norm(x), x, upstream)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "silu": lambda x: x * torch.sigmoid(x),
    "swiglu": lambda x: x * torch.sigmoid(x),
}
ACTIVATIONS["gelu_tanh"] = ACTIVATIONS["geglu"] = lambda x: (
    0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
)


@pytest.mark.parametrize("kind", FEEDFORWARDS)
@pytest.mark.parametrize("bias", [False, True])
def test_feedforwards_are_the_formulas(kind: str, bias: bool) -> None:
    part, x = FEEDFORWARDS[kind](6, 10, bias=bias).double(), 2 * draw(2, 5, 6)

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, part.get_parameter(f"{name}.weight"), part.get_parameter(f"{name}.bias") if bias else None)

    gated = kind in GATED
    hidden = ACTIVATIONS[kind](linear("gate" if gated else "up", x)) * (linear("up", x) if gated else 1)
    torch.testing.assert_close(part(x), linear("down", hidden), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "d_model", "d_ff"), [("gelu", 128, 512), ("relu", 96, 384), ("swiglu", 96, 256), ("swiglu", 128, 344)]
)
def test_hidden_widths_cost_the_same_however_they_are_gated(kind: str, d_model: int, d_ff: int) -> None:
    assert ModelConfig.read({"feedforward": kind, "d_model": d_model}).d_ff == d_ff
    plain, part = FeedForward(F.relu, d_model, 4 * d_model), FEEDFORWARDS[kind](d_model, d_ff)
    sizes = [sum(p.numel() for p in module.parameters()) for module in (plain, part)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


def test_sublayers_are_the_two_formulas() -> None:
    part, norm, x = nn.Linear(8, 8).double(), LayerNorm(8).double(), draw(2, 5, 8)
    assert torch.equal(Sublayer(part, norm, norm_position="pre")(x), x + part(norm(x)))
    assert torch.equal(Sublayer(part, norm, norm_position="post")(x), norm(x + part(x)))


def test_a_sublayer_drops_what_the_part_adds_and_never_the_residual() -> None:
    x = draw(4, 50, 8)
    sublayer = Sublayer(nn.Identity(), nn.Identity(), dropout=0.5).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ratio = (sublayer(x) / x).round(decimals=9)
    assert ratio.unique().tolist() == [1, 3]  # dropped, or kept and doubled


def test_no_dropout_leaves_no_call_behind() -> None:
    assert isinstance(make_dropout(0.0), nn.Identity)
    assert isinstance(make_dropout(0.1), nn.Dropout)


def make_block(*, cross: bool) -> Block:
    parts: list[nn.Module] = [Attention(8, 2), FeedForward(F.relu, 8, 16), *([Attention(8, 2)] if cross else [])]
    return Block(*(Sublayer(part, LayerNorm(8)) for part in parts)).double()


def test_cross_attention_and_memory_come_together() -> None:
    x, encoded = draw(1, 3, 8), draw(1, 4, 8, seed=1)
    assert make_block(cross=True)(x, encoded).shape == x.shape
    for cross, passed in ((True, None), (False, encoded)):
        with pytest.raises(AssertionError, match="come together"):
            make_block(cross=cross)(x, passed)


def test_a_stack_is_its_blocks_in_a_row_and_its_norm() -> None:
    blocks, norm, x = [make_block(cross=False) for _ in range(3)], LayerNorm(8).double(), draw(1, 3, 8)
    expected = x
    for block in blocks:
        expected = block(expected, mask="causal")
    assert torch.equal(Stack(blocks, norm)(x, mask="causal"), norm(expected))
    assert torch.equal(Stack(blocks)(x, mask="causal"), expected)


def test_both_parts_of_a_parallel_block_read_its_input() -> None:
    parts = Attention(8, 2), FeedForward(F.relu, 8, 16)
    sublayers = [Sublayer(part, RMSNorm(8)).double().eval() for part in parts]
    block, x = ParallelBlock(*sublayers), draw(2, 5, 8)
    attention, feedforward = (sublayer(x) - x for sublayer in sublayers)
    torch.testing.assert_close(block(x, mask="causal"), x + sublayers[0](x, mask="causal") - x + feedforward)
    assert not torch.allclose(block(x, mask="causal"), x + attention + feedforward)
    assert not torch.allclose(block(x), Block(*sublayers)(x))


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_divides_transforms_and_shifts(tied: bool) -> None:
    hidden, embedding, bias = draw(2, 3, 4), draw(7, 4, seed=1), draw(7, seed=2)
    head = LMHead(4, 7, tied=tied, bias=True, scaled=True, transform=Transform(4, F.relu, LayerNorm(4))).double()
    state = {name: draw(*tensor.shape, seed=3) for name, tensor in head.state_dict().items()} | {"bias": bias}
    head.load_state_dict(state)
    dense = F.linear(hidden, state["transform.dense.weight"], state["transform.dense.bias"]).clamp(min=0)
    normed = F.layer_norm(dense, (4,), state["transform.norm.weight"], state["transform.norm.bias"])
    matrix = embedding if tied else state["weight"]
    torch.testing.assert_close(head(hidden, embedding), normed @ matrix.T / 2 + bias)
