"""The attention that a model really computes: who is allowed to see whom, by what mask, read off the operations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.instruments.tracing import Call

HIDDEN = -1e6  # scores below are hidden for good; a finite mask above it can be outweighed by larger scores
FUSED = "scaled_dot_product_attention"
WHOLE = "multi_head_attention_forward"


@dataclass(frozen=True)
class Attention:
    """One attention, in order of execution.

    Args:
        index: of its operation.
        allowed: (T_q, T_k), True where any head of any row may look.
        strength: how much lower scores are where the mask hides; None where nothing is hidden, inf for a real mask.
        axis_is_wrong: the weights sum to one along another axis than the keys'.
        hidden_later: weights were set to zero after they had been normalised.
        scores: (N, T_q, T_k) of all rows and heads, where they can be read.
    """

    index: int
    call: Call
    allowed: Tensor
    strength: float | None
    axis_is_wrong: bool = False
    hidden_later: bool = False
    scores: Tensor | None = None


def attentions(calls: Sequence[Call]) -> Iterator[Attention]:
    """All attentions among recorded operations."""
    for index, call in enumerate(calls):
        if call.name == "softmax" and call.outputs and call.outputs[0].dim() >= 3 and call.inputs:
            yield from _plain(index, call, calls)
        elif call.name == FUSED and len(call.inputs) >= 3:
            yield _fused(index, call)
        elif call.name == WHOLE and len(call.inputs) >= 3:
            yield _whole(index, call)


def _plain(index: int, call: Call, calls: Sequence[Call]) -> Iterator[Attention]:
    scores, weights = call.inputs[0], call.outputs[0]  # (..., T_q, T_k)
    if min(scores.shape[-2:]) < 2:
        return
    dim = _dim(call)
    flat = scores.reshape(-1, *scores.shape[-2:])
    allowed = (flat > HIDDEN).any(0)
    strength = float("inf") if not allowed.all() else _finite_strength(flat)
    if strength is None and _was_added(calls[max(0, index - 4) : index], scores.shape[-2:]):
        strength = 1.0
    later = any(
        other.outputs
        and other.outputs[0].shape == weights.shape
        and other.name != "softmax"
        and bool((other.outputs[0] == 0).reshape(-1, *weights.shape[-2:]).all(0).any())
        for other in calls[index + 1 : index + 6]
    )
    later = later and bool((weights > 0).all())
    yield Attention(index, call, allowed, strength, dim not in (-1, scores.dim() - 1), later, flat)


def _dim(call: Call) -> int:
    args, kwargs = call.options["args"], call.options["kwargs"]
    return int(kwargs.get("dim", args[1] if len(args) > 1 else -1))


def _finite_strength(flat: Tensor) -> float | None:
    """The drop between the triangles, if the upper one lies below the lower one throughout: a mask that is finite."""
    if flat.shape[-1] != flat.shape[-2]:
        return None
    upper = torch.ones(flat.shape[-2:], dtype=torch.bool).triu(1)
    drop = float(flat[:, ~upper].mean() - flat[:, upper].mean())
    spread = float(flat[:, ~upper].std())
    return drop if drop > max(5.0, 4 * spread) else None


def _was_added(calls: Sequence[Call], shape: torch.Size) -> bool:
    """Whether a square of zeros and ones was added to the scores."""
    for call in calls:
        if "add" in call.name:
            for tensor in (part for part in call.options["args"] if isinstance(part, Tensor)):
                if tensor.shape[-2:] == shape and bool(((tensor == 0) | (tensor == 1)).all()) and tensor.any():
                    return True
    return False


def _fused(index: int, call: Call) -> Attention:
    args, kwargs = call.options["args"], call.options["kwargs"]
    query, key = call.inputs[0], call.inputs[1]
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    causal = bool(kwargs.get("is_causal", args[5] if len(args) > 5 else False))
    T_q, T_k = query.shape[-2], key.shape[-2]
    allowed, strength = _allowed(mask, T_q, T_k, true_means_seen=True)
    if causal:
        allowed, strength = allowed.tril(), float("inf")
    scores = None
    if query.shape[-1] == key.shape[-1]:
        if key.dim() == 4 and query.dim() == 4 and key.shape[1] != query.shape[1]:  # grouped queries
            key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).reshape(-1, T_q, T_k)
    return Attention(index, call, allowed, strength, scores=scores)


def _whole(index: int, call: Call) -> Attention:
    kwargs = call.options["kwargs"]
    n, m = call.inputs[0].shape[0], call.inputs[1].shape[0]  # torch's own is time first here
    allowed, strength = _allowed(kwargs.get("attn_mask"), n, m, true_means_seen=False)
    if kwargs.get("is_causal") and kwargs.get("attn_mask") is None:
        allowed, strength = allowed.tril(), float("inf")
    return Attention(index, call, allowed, strength)


def _allowed(mask: Tensor | None, T_q: int, T_k: int, *, true_means_seen: bool) -> tuple[Tensor, float | None]:
    everything = torch.ones(T_q, T_k, dtype=torch.bool)
    if mask is None:
        return everything, None
    is_bool = mask.dtype == torch.bool
    seen = (mask if true_means_seen else ~mask) if is_bool else mask > HIDDEN
    seen = seen.expand(*seen.shape[:-2], T_q, T_k) if seen.dim() >= 2 else seen.expand(T_q, T_k)
    seen = seen.reshape(-1, T_q, T_k).any(0)
    if not seen.all():
        return seen, float("inf")
    if mask.dtype == torch.bool or not (mask < 0).any():
        return seen, abs(float(mask.float().max() - mask.float().min())) if mask.dtype != torch.bool else None
    return seen, float(mask.max() - mask.min())
