"""Attention by whole matrices of scores is the fused kernel's, gradients and all, and is taken where it is faster."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.parts import attend
from clearhead.parts.dropout import dropout_mask
from clearhead.parts.eager_attention import WIDTHS, Scoring, eager_attention
from clearhead.parts.masks import Mask

B, H, T_q, T_k, K = 2, 4, 6, 9, 8


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def heads(n_kv_heads: int, T_q: int, T_k: int) -> list[Tensor]:
    """Query, key and value as a projection leaves them: heads last but one in memory."""
    shapes = ((T_q, H), (T_k, n_kv_heads), (T_k, n_kv_heads))
    drawn = [draw(B, T, n, K, seed=seed) for seed, (T, n) in enumerate(shapes)]
    return [part.transpose(1, 2).requires_grad_() for part in drawn]


def result_and_gradients(output: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    return [output, *torch.autograd.grad(output, parts, draw(*output.shape, seed=9))]


@pytest.mark.sampled
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("form", ["none", "causal", "one for all", "one a row"])
@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_the_fused_kernels(n_kv_heads: int, form: str, scale: float | None, biased: bool) -> None:
    parts = heads(n_kv_heads, T_q, T_q if form == "causal" else T_k)
    rows = draw(B, 1, T_q, T_k, seed=5) > 0
    rows[0, 0, 2] = False  # nothing to attend to
    masks: dict[str, Mask] = {"none": None, "causal": "causal", "one for all": rows[0, 0], "one a row": rows}
    query, key, value = parts
    bias = draw(H, T_q, key.shape[2], seed=6) if biased else None
    expected = result_and_gradients(
        attend(query, key, value, mask=masks[form], bias=bias, scoring=Scoring(scale)), parts
    )
    by_scores = eager_attention(query, key, value, mask=masks[form], bias=bias, scoring=Scoring(scale))
    actual = result_and_gradients(by_scores, parts)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_the_weights_it_returns_are_those_it_applied(n_kv_heads: int) -> None:
    query, key, value = heads(n_kv_heads, T_q, T_k)
    mask = draw(T_q, T_k, seed=5) > 0
    mask[2] = False  # nothing to attend to
    mixed, weights = eager_attention(query, key, value, mask=mask, return_weights=True)
    assert weights.shape == (B, H, T_q, T_k)
    assert not weights[..., ~mask].any()
    torch.testing.assert_close(weights.sum(-1), mask.any(-1).double().expand(B, H, T_q), rtol=0, atol=1e-12)
    each_value = value.repeat_interleave(H // n_kv_heads, dim=1)
    torch.testing.assert_close(weights @ each_value, mixed, rtol=0, atol=1e-12)


def test_weights_are_dropped() -> None:
    query, key, value = heads(2, T_q, T_k)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        output = eager_attention(query, key, value, mask=None, dropout=0.5, scoring=Scoring(1.0))
        torch.manual_seed(1)
        survivors = dropout_mask(torch.Size([B * 2, 2 * T_q, T_k]), 0.5, torch.float64).view(B, H, T_q, T_k)
    assert 0.3 < float((survivors == 0).double().mean()) < 0.7
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    expected = ((query @ key.mT).softmax(-1) * survivors) @ value
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("greatest", [1, 20, 80, 1000])
def test_what_rounding_the_scores_does(greatest: float, causal: bool) -> None:
    """However large they are: a score s is off by U |s| at most, and so a weight w by the factor exp(U |s|).

    So sum w v / sum w = o is off by sum w (exp(U |s|) - 1) |v - o| / sum w exp(-U |s|), and by U for each of the two
    roundings of weights and of what they give.
    """
    U = 2.0**-8  # half a unit in the last of bfloat16's eight binary places
    query, key, value = (draw(2, 4, 32, K, seed=seed).bfloat16() for seed in range(3))
    scores = query.double() @ key.double().mT
    scale = greatest / float(scores.abs().max())
    scores *= scale
    future = torch.ones(32, 32, dtype=torch.bool).triu(1) & causal
    weights, v = scores.masked_fill(future, -torch.inf).softmax(-1), value.double()
    exact = weights @ v
    apart = (v[:, :, None] - exact[:, :, :, None]).abs()  # (B, H, T_q, T_k, K)
    moved = (weights * torch.expm1(U * scores.abs()))[..., None] * apart
    bound = moved.sum(-2) / (weights * torch.exp(-U * scores.abs())).sum(-1, keepdim=True)
    bound += 2 * U * (weights @ v.abs() + bound)
    output = eager_attention(query, key, value, mask="causal" if causal else None, scoring=Scoring(scale))
    assert ((output.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("longer", [0, 1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_who_is_asked(longer: int, biased: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the kernel, where bfloat16 is on a CPU and texts are short; else the kernel, always in float32."""
    fused, computed = F.scaled_dot_product_attention, list[tuple[torch.dtype, bool]]()

    def watched(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        computed.extend((part.dtype, torch.is_autocast_enabled("cpu")) for part in (query, key, value))
        return fused(query, key, value, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    T = WIDTHS * K + longer
    query, key, value = (draw(1, 2, T, K, seed=seed).float() for seed in range(3))
    bias = draw(2, T, T, seed=3).float() if biased else None
    expected = fused(query, key, value, attn_mask=bias, is_causal=not biased)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = attend(query, key, value.to(dtype), mask=None if biased else "causal", bias=bias)
    assert computed == ([] if dtype == torch.bfloat16 and not (longer or biased) else [(torch.float32, False)] * 3)
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.02)
