"""Attention spelt out in operations that every graph has, in place of torch's fused kernel."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, scale: float | None = None, **unused: Any
) -> Tensor:
    """softmax(scale q k^T + bias) v, as `F.scaled_dot_product_attention`; a query that sees nothing yields zeros.

    Args:
        query: (B, H, T, K). key, value: (B, H_kv, T_k, K), each serving H / H_kv query heads.
        attn_mask: True means may attend; or what is added to the scores, -inf where it may not.
        scale: 1 / sqrt(K) unless said.
        unused: dropout, which is off in a graph, and hints to the kernel.

    Returns:
        (B, H, T, K).
    """
    shared = (key.shape[1], query.shape[1] // key.shape[1])
    scaled = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    grouped = torch.unflatten(scaled, 1, shared)  # (B, H, T, K) -> (B, H_kv, H / H_kv, T, K)
    scores = (grouped @ key.unsqueeze(2).mT).flatten(1, 2)  # (B, H_kv, H / H_kv, T, T_k) -> (B, H, T, T_k)
    if attn_mask.dtype == torch.bool:
        allowed = attn_mask
    else:
        allowed, scores = attn_mask > -torch.inf, scores + attn_mask
    lowest = torch.finfo(scores.dtype).min  # with -inf, a row where nothing is allowed would be 0 / 0
    weights = scores.masked_fill(~allowed, lowest).softmax(-1).masked_fill(~allowed, 0.0)  # (B, H, T, T_k)
    mixed: Tensor = torch.unflatten(weights, 1, shared) @ value.unsqueeze(2)  # (B, H_kv, H / H_kv, T, K)
    return mixed.flatten(1, 2)  # (B, H_kv, H / H_kv, T, K) -> (B, H, T, K)


class PlainAttention(TorchFunctionMode):
    """Inside of it, torch's kernel is `attention`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        used = attention if func is F.scaled_dot_product_attention else func
        return used(*args, **(kwargs or {}))
