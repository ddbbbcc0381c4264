"""Attention against the formula written out, and at its edges."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.parts import Attention, MemoryCache, ProjectionConfig, RMSNorm, attend
from clearhead.parts.eager_attention import WIDTHS, Scoring, eager_attention
from clearhead.parts.masks import Mask

B, H, T, K = 2, 4, 6, 8


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def written_out(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor) -> Tensor:
    """The formula; a row with nothing to attend to is zero."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = (query @ key.mT / math.sqrt(query.shape[-1]) + bias).masked_fill(~allowed, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True).clamp(min=-1e30)).exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300) @ value


@pytest.mark.sampled
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("form", ["none", "causal", "tensor"])
@pytest.mark.parametrize("biased", [False, True])
def test_against_the_formula(n_kv_heads: int, form: str, biased: bool) -> None:
    query, key, value = draw(B, H, T, K), draw(B, n_kv_heads, T, K, seed=1), draw(B, n_kv_heads, T, K, seed=2)
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool)
    mask: Mask = None
    if form == "causal":
        allowed, mask = allowed.tril(), "causal"
    if form == "tensor":
        allowed = mask = draw(B, 1, T, T, seed=3) > 0
    bias = draw(H, T, T, seed=4) if biased else None
    expected = written_out(query, key, value, allowed, draw(H, T, T, seed=4) if biased else torch.zeros(()))
    output = attend(query, key, value, mask=mask, bias=bias)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_nothing_to_attend_to_yields_zeros_and_finite_gradients(
    dtype: torch.dtype, biased: bool, learning: bool, n_kv_heads: int
) -> None:
    query, key, value = draw(B, H, T, K, dtype=dtype), *(draw(B, n_kv_heads, T, K, seed=s, dtype=dtype) for s in (1, 2))
    mask = torch.ones(B, 1, T, T, dtype=torch.bool).tril()
    mask[0, 0, :3] = False
    for tensor in (query, key, value):
        tensor.requires_grad_(learning)
    output = attend(query, key, value, mask=mask, bias=draw(H, T, T, seed=4) if biased else None)
    assert (output[0, :, :3] == 0).all()
    assert output.isfinite().all()
    assert (output[0, :, 3:] != 0).any()
    if learning:
        gradients = torch.autograd.grad(output.float().square().sum(), (query, key, value))
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[0][0, :, :3] == 0).all()


def test_dropout_acts_on_the_weights_in_training_only() -> None:
    attention, x = Attention(16, 2, dropout=0.5).double(), draw(1, 200, 16)
    plain = attention.eval()(x)
    assert torch.equal(attention(x), plain)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.equal(attention.train()(x), plain)


def test_memory_is_what_keys_and_values_come_from() -> None:
    attention, x, memory = Attention(16, 2).double(), draw(1, 5, 16), draw(1, 3, 16, seed=1)
    assert torch.equal(attention(x, x), attention(x))
    assert not torch.equal(attention(x, memory), attention(x))
    reordered = attention(x, memory.flip(1))
    torch.testing.assert_close(reordered, attention(x, memory), rtol=0, atol=1e-12)  # no positions: a set


def test_a_memory_is_projected_once() -> None:
    attention, x, memory = Attention(16, 2).double(), draw(1, 5, 16), draw(1, 3, 16, seed=1)
    cache, calls = MemoryCache(), list[int]()
    handle = attention.key.register_forward_hook(lambda *_: calls.append(1))
    first = attention(x[:, :2], memory, cache=cache)
    second = attention(x[:, 2:], memory, cache=cache)
    handle.remove()
    assert len(calls) == 1
    torch.testing.assert_close(torch.cat((first, second), 1), attention(x, memory), rtol=0, atol=1e-12)


def test_qk_norm_makes_scores_independent_of_the_scale_of_the_input() -> None:
    projections = ProjectionConfig(qk_norm=partial(RMSNorm, eps=1e-30))
    attention, x = Attention(16, 2, projections=projections).double(), draw(1, 5, 16)
    torch.testing.assert_close(
        attention(7 * x), 7 * attention(x), rtol=1e-12, atol=1e-12
    )  # values scale, weights do not
    plain = Attention(16, 2).double()
    assert not torch.allclose(plain(7 * x), 7 * plain(x))


def test_shared_heads_save_parameters() -> None:
    sizes = [sum(p.numel() for p in Attention(16, 4, n).parameters()) for n in (4, 2, 1)]
    assert sizes == [4 * 16 * 16, 3 * 16 * 16, 2 * 16 * 16 + 2 * 16 * 4]


@pytest.mark.parametrize("qk_norm", [False, True])
def test_on_a_cpu_attention_to_a_long_text_is_float32_where_the_rest_is_bfloat16(
    qk_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused kernel's backward pass is several times slower in bfloat16 there."""
    computed = list[tuple[torch.dtype, bool]]()

    def watched(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        computed.extend((part.dtype, torch.is_autocast_enabled("cpu")) for part in (query, key, value))
        return fused(query, key, value, **options)

    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    attention = Attention(16, 2, projections=ProjectionConfig(qk_norm=RMSNorm if qk_norm else None))
    with torch.autocast("cpu", torch.bfloat16):
        attention(torch.randn(2, WIDTHS * attention.head_dim + 1, 16), mask="causal")
    assert computed == [(torch.float32, False)] * 3


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("T", [5, 40, 80])
def test_beside_products_in_bfloat16_attention_stays_what_it_is(qk_norm: bool, T: int) -> None:
    attention = Attention(16, 2, projections=ProjectionConfig(qk_norm=RMSNorm if qk_norm else None))
    x = torch.randn(2, T, 16, generator=torch.Generator().manual_seed(0))
    expected = attention(x, mask="causal")
    with torch.autocast("cpu", torch.bfloat16):
        output = attention(x, mask="causal")
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.02)


def test_heads_that_do_not_fit_are_refused_at_construction() -> None:
    with pytest.raises(AssertionError, match=r"d_model \(10\) is not divisible by n_heads \(3\)"):
        Attention(10, 3)
    with pytest.raises(AssertionError, match=r"n_heads \(4\) is not divisible by n_kv_heads \(3\)"):
        Attention(12, 4, 3)
    assert Attention(10, 3, head_dim=4)(draw(1, 5, 10).float()).shape == (1, 5, 10)


ATTENTIONS = {
    "fused": attend,
    "softcap": partial(attend, scoring=Scoring(softcap=2.0)),
    "biased": partial(attend, bias=torch.zeros(())),
    "eager": eager_attention,
}


@pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_of_another_name_or_shape_is_refused(attention: Callable[..., Tensor], dtype: torch.dtype) -> None:
    query, key = draw(B, H, 2, K, dtype=dtype), draw(B, H, 5, K, seed=1, dtype=dtype)
    with pytest.raises(AssertionError, match="no mask 'causall'"):
        attention(key, key, key, mask="causall")
    with pytest.raises(AssertionError, match="2 queries and 5 keys"):
        attention(query, key, key, mask="causal")
