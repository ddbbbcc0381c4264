"""Attention: self, cross, grouped-query and cached, in one module without flags."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.parts.cache import AttentionCache, KeysValues
from clearhead.parts.eager_attention import PLAIN, Scoring, eager_attention, is_small
from clearhead.parts.masks import Mask, check_causal
from clearhead.parts.positions import Rotate


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scoring: Scoring = PLAIN,
) -> Tensor:
    """softmax(q k^T / sqrt(K) + bias) v (Vaswani et al. 2017, equation 1).

    Torch's fused kernel computes it, in memory linear in T. `eager_attention`, which keeps T x T scores for each
    head, computes any `scoring` that the kernel does not know, and short texts in bfloat16 on a CPU.

    Args:
        query: (B, H, T_q, K). key, value: (B, H_kv, T_k, K), each serving H / H_kv query heads.
        mask: see `masks.attention_mask`; True means may attend. A query with nothing to attend to yields zeros.
        bias: added to the scores, broadcastable to (B, H, T_q, T_k).
        dropout: probability of dropping an attention weight.
        scoring: how queries score keys; product over sqrt(K) by default.

    Returns:
        (B, H, T_q, K).
    """
    if value.dtype == torch.bfloat16 and value.device.type == "cpu":  # where the kernel's backward is slow in bfloat16
        with torch.autocast("cpu", enabled=False):
            if bias is None and is_small(query, key):
                return eager_attention(query, key, value, mask=mask, dropout=dropout, scoring=scoring)
            wide = (part.float() for part in (query, key, value))
            return attend(*wide, mask=mask, bias=bias, dropout=dropout, scoring=scoring).to(value.dtype)
    if not scoring.is_fused:
        return eager_attention(query, key, value, mask=mask, bias=bias, dropout=dropout, scoring=scoring)
    causal = isinstance(mask, str)
    if isinstance(mask, str):
        check_causal(mask, query.shape[2], key.shape[2])
    allowed = mask if isinstance(mask, Tensor) else None
    if bias is not None:
        if causal:
            causal, allowed = False, query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        bias = bias.to(query.dtype)
        allowed = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
    grouped = key.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=causal,
        scale=scoring.scale,
        enable_gqa=grouped,
    )


@dataclass(frozen=True)
class ProjectionConfig:
    """The biases of the four projections, and the norm of queries and keys.

    Args:
        bias, qkv_bias: whether the output projection has a bias, and the other three (`bias` by default).
        qk_norm: builds a norm of width K, for queries and for keys.
    """

    bias: bool = False
    qkv_bias: bool | None = None
    qk_norm: Callable[[int], nn.Module] | None = None


NO_BIAS = ProjectionConfig()


class Attention(nn.Module):
    """Multi-head attention; fewer key heads make it grouped-query or multi-query (arXiv 2305.13245, 1911.02150).

    Weights are never returned: `inspection` recomputes them from the same inputs.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        projections: ProjectionConfig = NO_BIAS,
        scoring: Scoring = PLAIN,
        dropout: float = 0.0,
    ) -> None:
        """
        Args:
            d_model: width of input and output.
            n_heads, n_kv_heads: heads of the queries, and of keys and values (n_heads by default).
            head_dim: K; d_model / n_heads by default.
            projections: without biases and norms by default.
            scoring: how queries score keys.
            dropout: probability of dropping an attention weight in training.
        """
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        assert head_dim or d_model % n_heads == 0, f"d_model ({d_model}) is not divisible by n_heads ({n_heads})"
        assert n_heads % self.n_kv_heads == 0, f"n_heads ({n_heads}) is not divisible by n_kv_heads ({n_kv_heads})"
        self.head_dim = head_dim or d_model // n_heads
        self.scoring = scoring
        self.dropout = dropout
        width, kv_width = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        bias, qk_norm = projections.bias, projections.qk_norm
        qkv_bias = bias if projections.qkv_bias is None else projections.qkv_bias
        self.query = nn.Linear(d_model, width, bias=qkv_bias)
        self.key = nn.Linear(d_model, kv_width, bias=qkv_bias)
        self.value = nn.Linear(d_model, kv_width, bias=qkv_bias)
        self.output = nn.Linear(width, d_model, bias=bias)
        self.query_norm = qk_norm(self.head_dim) if qk_norm else nn.Identity()
        self.key_norm = qk_norm(self.head_dim) if qk_norm else nn.Identity()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask = None,
        rotate: Rotate | None = None,
        bias: Tensor | None = None,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """Queries come from `x` (B, T_q, D); keys and values from `memory` (B, T_k, D), or from `x` without it.

        Returns:
            (B, T_q, D).
        """
        query, key, value = self.project(x, memory, rotate=rotate, cache=cache)
        dropout = self.dropout if self.training else 0.0
        mixed = attend(query, key, value, mask=mask, bias=bias, dropout=dropout, scoring=self.scoring)  # (B, H, T_q, K)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # (B, T_q, H * K)

    def project(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        rotate: Rotate | None = None,
        cache: AttentionCache | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project the inputs to queries (B, H, T_q, K), keys and values (B, H_kv, T_k, K), as `attend` takes them."""
        source = x if memory is None else memory

        def keys_and_values() -> KeysValues:
            key: Tensor = self.key_norm(self._split(self.key(source)))
            return rotate(key) if rotate else key, self._split(self.value(source))

        query: Tensor = self.query_norm(self._split(self.query(x)))
        query = rotate(query) if rotate else query
        return query, *(cache.update(keys_and_values) if cache else keys_and_values())

    def _split(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        return x.view(batch, time, -1, self.head_dim).transpose(1, 2)  # (B, T, H * K) -> (B, T, H, K) -> (B, H, T, K)
