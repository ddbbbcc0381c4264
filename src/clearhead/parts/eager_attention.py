"""Attention by whole matrices of scores, in operations that every runtime has.

It is the only implementation that can return its weights, which `inspection` reads; ONNX graphs are traced through it.
Attention uses it where torch's fused kernel does not support the scoring (a soft cap), and for short texts in bfloat16
on a CPU, where it is 1.5 to 2 times as fast: there the kernel has narrow blocks and a slow backward, and these are six
large products. Their memory grows with the square of the text. A bfloat16 score has eight binary places: one of 10 is
off by 0.03 at most, one of 80 by 0.25.
"""

from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from clearhead.parts.dropout import drop
from clearhead.parts.masks import Mask, check_causal

WIDTHS = 8  # eager up to T_k = 8 K; the scores are then twice the feed-forward's activations


@dataclass(frozen=True)
class Scoring:
    """How a query scores a key, before bias and mask.

    A soft cap costs memory: torch's fused kernel has none, so a step stores several T x T tensors per head.

    Args:
        scale: the factor of the product; 1 / sqrt(K) by default.
        softcap: c, where a score s becomes c tanh(s / c), between -c and c (Gemma Team 2024, arXiv 2408.00118,
            section 2).
    """

    scale: float | None = None
    softcap: float | None = None

    @property
    def is_fused(self) -> bool:
        """Whether torch's fused kernel computes it."""
        return self.softcap is None

    def factor(self, width: int) -> float:
        """The scale of heads of this width."""
        return width**-0.5 if self.scale is None else self.scale

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """(..., T_q, K), (..., T_k, K) -> (..., T_q, T_k)."""
        scores = query @ key.mT * self.factor(query.shape[-1])
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


PLAIN = Scoring()


def is_small(query: Tensor, key: Tensor) -> bool:
    """Whether the T_q x T_k scores fit beside the other activations, so that eager attention is faster."""
    return key.shape[2] <= WIDTHS * query.shape[3]


@overload
def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scoring: Scoring = PLAIN,
    return_weights: Literal[False] = False,
) -> Tensor: ...


@overload
def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scoring: Scoring = PLAIN,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scoring: Scoring = PLAIN,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `attend`, in the dtype of `value`, in which the scores are computed, too; arguments as there.

    Args:
        return_weights: also return the weights (B, H, T_q, T_k) as they were applied: rows that sum to 1, or zeros
            where a query has nothing to attend to.
    """
    B, H, T_q, K = query.shape
    H_kv, T_k = key.shape[1:3]
    query, key, value = (
        part.to(value.dtype, memory_format=torch.contiguous_format).reshape(B * H_kv, -1, K)
        for part in (query, key, value)
    )  # (B * H_kv, H / H_kv * T_q, K), the heads that share a key one after the other; (B * H_kv, T_k, K)
    added, blind = _added_to_scores(mask, bias, query, (T_q, T_k))
    added = added.expand(B, H, T_q, T_k).reshape(B * H_kv, -1, T_k)
    if scoring.is_fused:
        beta = 0 if mask is None and bias is None else 1
        scores = torch.baddbmm(added, query, key.mT, beta=beta, alpha=scoring.factor(K))
    else:
        scores = scoring.scores(query, key) + added  # (B * H_kv, H / H_kv * T_q, T_k)
    weights = scores.softmax(dim=-1)
    weights = weights if blind is None else weights.view(B, H, T_q, T_k).masked_fill(blind, 0).view_as(scores)
    weights = drop(weights, dropout) if dropout else weights
    mixed = torch.bmm(weights, value).view(B, H, T_q, K)
    return (mixed, weights.view(B, H, T_q, T_k)) if return_weights else mixed


def _added_to_scores(
    mask: Mask, bias: Tensor | None, like: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, Tensor | None]:
    """Bias and mask as an addend to the scores, (..., T_q, T_k), and which queries are fully masked, (..., T_q, 1).

    The addend lets a fully masked query see all keys, so that its softmax is not 0 / 0; its weights are zeroed later.
    """
    added = like.new_zeros(()) if bias is None else bias.to(like.dtype)
    if mask is None:
        return added, None
    if isinstance(mask, str):
        check_causal(mask, *shape)
        return added + like.new_full(shape, -torch.inf).triu(1), None
    blind = ~mask.any(dim=-1, keepdim=True)
    return added + like.new_zeros(mask.shape).masked_fill_(~(mask | blind), -torch.inf), blind
