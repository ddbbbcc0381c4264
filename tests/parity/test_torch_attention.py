"""Our attention and `nn.MultiheadAttention`: one set of weights, every kind of mask, outputs and all gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch_pairs import Both, Form, Side, assert_same, in_torch, numbers, share_weights

from clearhead.parts import allowed_from_additive, allowed_from_forbidden, attention_mask, positions_from_lengths

Options = dict[str, Any]
SEEDS = range(3)


class Sizes(NamedTuple):
    """Of scores (B, H, T, S), whose masks are drawn from the seed."""

    B: int
    H: int
    T: int
    S: int
    seed: int


def random_allowed(*shape: int, seed: int, real: Tensor | None = None) -> Tensor:
    """Half of the keys, at random; a query that would see none of them sees all. `real` (B, T_k): no padding there."""
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5  # (..., T_q, T_k)
    blind = ~allowed.any(-1) if real is None else ~(allowed & real[:, None]).any(-1).all(0)  # (..., T_q)
    return allowed | blind.unsqueeze(-1)


def unmasked(of: Sizes) -> tuple[Options, Options]:
    return {}, {}


def to_forbidden(of: Sizes) -> tuple[Options, Options]:
    allowed = random_allowed(of.T, of.S, seed=of.seed)
    return {"mask": allowed}, {"attn_mask": in_torch(allowed, "boolean")}


def from_forbidden(of: Sizes) -> tuple[Options, Options]:
    forbidden = torch.ones(of.T, of.S, dtype=torch.bool).triu(1)
    return {"mask": allowed_from_forbidden(forbidden)}, {"attn_mask": forbidden}


def to_additive(of: Sizes) -> tuple[Options, Options]:
    allowed = random_allowed(of.T, of.S, seed=of.seed)
    return {"mask": allowed}, {"attn_mask": in_torch(allowed, "additive")}


def from_additive(of: Sizes) -> tuple[Options, Options]:
    """Others write the most negative number as often as minus infinity."""
    lowest = torch.tensor([torch.finfo(torch.float64).min, -torch.inf], dtype=torch.float64)
    lows = lowest[torch.arange(of.S) % 2]  # (T_k,)
    additive = torch.where(random_allowed(of.T, of.S, seed=of.seed), 0.0, lows)
    return {"mask": allowed_from_additive(additive)}, {"attn_mask": additive}


def head_by_head(of: Sizes) -> tuple[Options, Options]:
    allowed = random_allowed(of.B, of.H, of.T, of.S, seed=of.seed)
    return {"mask": allowed}, {"attn_mask": in_torch(allowed.flatten(0, 1), "boolean")}  # (B * H, T_q, T_k)


def added_scores(of: Sizes) -> tuple[Options, Options]:
    scores, allowed = numbers(of.T, of.S, seed=of.seed), random_allowed(of.T, of.S, seed=of.seed)
    return {"bias": scores, "mask": allowed}, {"attn_mask": scores + in_torch(allowed, "additive")}


def _padding(of: Sizes, side: Side, form: Form) -> tuple[Options, Options]:
    lengths = torch.randint(1, of.S + 1, (of.B,), generator=torch.Generator().manual_seed(of.seed))
    positions = positions_from_lengths(lengths, of.S, side or "right")
    mask = attention_mask(range(of.T), positions, causal=False)
    return {"mask": mask}, {"key_padding_mask": in_torch(positions >= 0, form)}


def padded_left(of: Sizes) -> tuple[Options, Options]:
    return _padding(of, "left", "boolean")


def padded_right(of: Sizes) -> tuple[Options, Options]:
    return _padding(of, "right", "boolean")


def padded_additive(of: Sizes) -> tuple[Options, Options]:
    return _padding(of, "right", "additive")


def padded_and_masked(of: Sizes) -> tuple[Options, Options]:
    ours, torch_options = _padding(of, "left", "boolean")
    allowed = random_allowed(of.T, of.S, seed=of.seed, real=ours["mask"][:, 0, 0])
    return {"mask": ours["mask"] & allowed}, torch_options | {"attn_mask": in_torch(allowed, "boolean")}


MASKS = [
    unmasked,
    to_forbidden,
    from_forbidden,
    to_additive,
    from_additive,
    head_by_head,
    added_scores,
    padded_left,
    padded_right,
    padded_additive,
    padded_and_masked,
]


@pytest.mark.parametrize("need_weights", [True, False])  # torch then takes two ways through its code
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("masks", MASKS)
def test_attention(
    masks: Callable[[Sizes], tuple[Options, Options]], seed: int, cross: bool, bias: bool, need_weights: bool
) -> None:
    both = Both(("pre", "relu", bias), seed)
    ours, reference = both.attention(), both.multihead_attention()
    share_weights(ours, reference, seed)
    inputs = [both.x(), both.memory()] if cross else [both.x()]
    options, torch_options = masks(Sizes(both.B, both.n_heads, both.T, inputs[-1].shape[1], seed))

    def compute_torch(x: Tensor, *memory: Tensor) -> Tensor:
        source = memory[0] if memory else x
        return reference(x, source, source, need_weights=need_weights, **torch_options)[0]  # type: ignore[no-any-return]

    assert_same(ours, reference, partial(ours, **options), compute_torch, inputs)


@pytest.mark.parametrize("form", ["boolean", "additive"])
@pytest.mark.parametrize("hint", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_causal_attention(seed: int, hint: bool, form: Form) -> None:
    both = Both(seed=seed)
    ours, reference = both.attention(), both.multihead_attention()
    share_weights(ours, reference, seed)
    future = in_torch(torch.ones(both.T, both.T, dtype=torch.bool).tril(), form)

    def compute_torch(x: Tensor) -> Tensor:
        return reference(x, x, x, attn_mask=future, is_causal=hint, need_weights=False)[0]  # type: ignore[no-any-return]

    assert_same(ours, reference, partial(ours, mask="causal"), compute_torch, [both.x()])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
@torch.inference_mode()
def test_the_short_cut_of_evaluation(seed: int, bias: bool) -> None:
    """Without gradients torch computes self-attention by a kernel of its own."""
    both = Both(("pre", "relu", bias), seed)
    ours, reference = both.attention(), both.multihead_attention().eval()
    share_weights(ours, reference, seed)
    x = both.x()
    torch.testing.assert_close(ours(x), reference(x, x, x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_that_sees_nothing_reads_zeros_and_leaves_the_others_alone(seed: int, need_weights: bool) -> None:
    """Torch makes NaN of such a query, or does not, by its way through the code, so its row is left out."""
    both = Both(seed=seed)
    ours, reference = both.attention(), both.multihead_attention()
    share_weights(ours, reference, seed)
    allowed = random_allowed(both.T, both.T, seed=seed)
    allowed[0] = False
    x = both.x().requires_grad_()
    output = ours(x, mask=allowed)  # (B, T, D)
    expected = reference(x, x, x, attn_mask=in_torch(allowed, "boolean"), need_weights=need_weights)[0]
    torch.testing.assert_close(output[:, 1:], expected[:, 1:], rtol=0, atol=1e-12)
    assert torch.equal(output[:, 0], ours.output.bias.expand(both.B, -1))  # the output map of zeros
    for gradient in torch.autograd.grad(output.square().sum(), [x, *ours.parameters()]):
        assert gradient.isfinite().all()
