"""Attention spelt out in operations that every graph has, in place of torch's fused kernel."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearhead.parts.eager_attention import Scoring, eager_attention


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, scale: float | None = None, **unused: object
) -> Tensor:
    """`F.scaled_dot_product_attention` in evaluation mode; a query that sees nothing yields zeros.

    Args:
        query: (B, H, T, K). key, value: (B, H_kv, T_k, K), each serving H / H_kv query heads.
        attn_mask: True means may attend; or what is added to the scores, -inf where it may not.
        scale: 1 / sqrt(K) by default.
        unused: dropout, which is off in a graph, and hints to the kernel.

    Returns:
        (B, H, T, K).
    """
    if attn_mask.dtype == torch.bool:
        return eager_attention(query, key, value, mask=attn_mask, scoring=Scoring(scale))
    allowed = attn_mask > -torch.inf
    return eager_attention(
        query, key, value, mask=allowed, bias=attn_mask.masked_fill(~allowed, 0), scoring=Scoring(scale)
    )


class PlainAttention(TorchFunctionMode):
    """Inside of it, torch's kernel is `attention`."""

    # Passes on the arguments of any function of torch, hence `Any`.
    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        used = attention if func is F.scaled_dot_product_attention else func
        return used(*args, **(kwargs or {}))
