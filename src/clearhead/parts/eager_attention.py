"""Attention by whole matrices of scores: in bfloat16 on a CPU, 1.5 to 2 times as fast as the fused kernel in float32.

That kernel has narrow blocks and a slow backward there; these are six large products. Their memory grows with the
square of the text, so they are only for short ones, or where the kernel does not know how queries score keys. In
bfloat16 a score is rounded to eight binary places: one of 10 is off by 0.03 at most, one of 80 by 0.25.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.parts.dropout import drop
from clearhead.parts.masks import Mask

WIDTHS = 8  # the longest text, in widths of a head: its scores are then twice as many as a feed-forward's numbers


@dataclass(frozen=True)
class Scoring:
    """How a query scores a key, before positions and masks have their say.

    A soft cap costs memory: torch's fused kernel has none, so a step keeps T x T numbers for each head, a few times.

    Args:
        scale: what the product of the two is multiplied with; 1 / sqrt(K) without it.
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
    """Whether (B, H, T_q, K) and (B, H_kv, T_k, K) have no more scores than a step has other numbers to remember."""
    return key.shape[2] <= WIDTHS * query.shape[3]


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scoring: Scoring = PLAIN,
) -> Tensor:
    """What `attend` gives, in the type of `value`, to which the scores are rounded as well; arguments as there."""
    B, H, T_q, K = query.shape
    H_kv, T_k = key.shape[1:3]
    query, key, value = (
        part.to(value.dtype, memory_format=torch.contiguous_format).reshape(B * H_kv, -1, K)
        for part in (query, key, value)
    )  # (B * H_kv, H / H_kv * T_q, K), the heads that share a key one after the other; (B * H_kv, T_k, K)
    shut, blind = _shut(mask, query, (T_q, T_k))
    added = shut if bias is None else shut + bias.to(value.dtype)
    added = added.expand(B, H, T_q, T_k).reshape(B * H_kv, -1, T_k)
    if scoring.is_fused:
        nothing = mask is None and bias is None
        scores = torch.baddbmm(
            added, query, key.mT, beta=0 if nothing else 1, alpha=scoring.factor(K)
        )  # (B * H_kv, H / H_kv * T_q, T_k)
    else:
        scores = scoring.scores(query, key) + added
    weights = scores.softmax(dim=-1)
    weights = weights if blind is None else weights.view(B, H, T_q, T_k).masked_fill(blind, 0).view_as(scores)
    weights = drop(weights, dropout) if dropout else weights
    return torch.bmm(weights, value).view(B, H, T_q, K)


def _shut(mask: Mask, like: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
    """What is added to the scores, (..., T_q, T_k), and where a mask lets a query see nothing, (..., T_q, 1).

    Such a query sees all for a moment, lest 0 be divided by 0.
    """
    if mask is None:
        return like.new_zeros(()), None
    if isinstance(mask, str):
        return like.new_full(shape, -torch.inf).triu(1), None
    blind = ~mask.any(dim=-1, keepdim=True)
    return like.new_zeros(mask.shape).masked_fill_(~(mask | blind), -torch.inf), blind
