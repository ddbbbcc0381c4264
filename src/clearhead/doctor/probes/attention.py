"""The attention that a model really computes: who may see whom, and by what mask, read from its operations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.probes.flow import Flow, read_by
from clearhead.doctor.probes.products import Product, factor_along, product_behind, product_of, scale_between
from clearhead.doctor.probes.tracing import ModuleCall

HIDDEN = -1e6  # scores below are hidden for good; a finite mask above it can be outweighed by larger scores
FUSED = "scaled_dot_product_attention"
WHOLE = "multi_head_attention_forward"


@dataclass(frozen=True)
class AttentionCall:
    """One attention, in order of execution.

    Args:
        index: of its operation.
        allowed: (T_q, T_k), True where any head of any row may look.
        strength: by how much a finite mask lowers the scores that it hides; inf for a real mask, None for no mask.
        axis_is_wrong: the weights sum to one along another axis than the one that is summed over.
        hidden_later: weights were set to zero after they had been normalized.
        scores: (N, T_q, T_k) of all rows and heads, including what was added to them, if they can be read.
        score_product: the product of queries and keys, if it is an operation of its own.
        value_product: the product with the values.
        query, key, value: the tensors themselves.
        ones_added: a mask of ones and zeros was added to the scores.
    """

    index: int
    call: ModuleCall
    allowed: Tensor
    strength: float | None
    axis_is_wrong: bool = False
    hidden_later: bool = False
    scores: Tensor | None = None
    score_product: Product | None = None
    value_product: Product | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    ones_added: bool = False


def attentions(calls: Sequence[ModuleCall], flow: Flow | None = None) -> Iterator[AttentionCall]:
    """All attentions among recorded operations. `flow`: theirs, if it is known already."""
    flow = flow or Flow(calls)
    for index, call in enumerate(calls):
        attention: AttentionCall | None = None
        if call.name == "softmax" and call.outputs and call.outputs[0].dim() >= 3 and call.inputs:
            attention = _plain(index, call, flow)
        elif call.name == FUSED and len(call.inputs) >= 3:
            attention = _fused(index, call)
        elif call.name == WHOLE and len(call.inputs) >= 3:
            attention = _whole(index, call)
        if attention is not None:
            yield attention


def _plain(index: int, call: ModuleCall, flow: Flow) -> AttentionCall | None:
    scores, weights = call.inputs[0], call.outputs[0]
    last, dim = scores.dim() - 1, call.argument(1, "dim")
    axis = last if dim is None else int(dim) % scores.dim()
    summed = product_of(flow, index)
    if summed is None:  # it need not be an attention at all
        alike = [k for k, size in enumerate(scores.shape) if size == scores.shape[axis] and k != axis]
        if len(alike) != 1 and axis != last:
            return None
        query_axis, key_axis = (alike[0] if len(alike) == 1 else last - 1), axis
    else:
        query_axis, key_axis = summed.kept, summed.summed
    scores, weights = (t.movedim((query_axis, key_axis), (-2, -1)) for t in (scores, weights))  # (..., T_q, T_k)
    if min(scores.shape[-2:]) < 2:
        return None
    flat = scores.reshape(-1, *scores.shape[-2:])
    allowed = (flat > HIDDEN).any(0)
    strength = float("inf") if not allowed.all() else _finite_strength(flat)
    ones_added = _ones_added(flow.calls[max(0, index - 4) : index], scores.shape[-2:])
    if strength is None and ones_added:
        strength = 1.0
    behind = [c.outputs[0] for c in flow.calls[index + 1 : index + 6] if c.outputs and c.name != "softmax"]
    moved = [t.movedim((query_axis, key_axis), (-2, -1)) for t in behind if t.shape == call.outputs[0].shape]
    later = any(bool((t == 0).flatten(0, -3).all(0).any()) for t in moved) and bool((weights > 0).all())
    product = product_behind(flow, index)
    query, key = (product.first, product.second) if product else (None, None)
    return AttentionCall(
        index, call, allowed, strength, axis != key_axis, later, flat, product, summed, query, key,
        summed.other if summed else None, ones_added,
    )  # fmt: skip


def _finite_strength(flat: Tensor) -> float | None:
    """By how much the upper triangle lies below the lower one, if it does so throughout: a finite mask."""
    if flat.shape[-1] != flat.shape[-2]:
        return None
    upper = torch.ones(flat.shape[-2:], dtype=torch.bool).triu(1)
    drop = float(flat[:, ~upper].mean() - flat[:, upper].mean())
    spread = float(flat[:, ~upper].std())
    return drop if drop > max(5.0, 4 * spread) else None


def _ones_added(calls: Sequence[ModuleCall], shape: torch.Size) -> bool:
    """Whether a square of zeros and ones, apart from what it hides, was added to the scores."""
    args = (part for call in calls if "add" in call.name for part in call.options["args"])
    squares = (part for part in args if isinstance(part, Tensor) and part.shape[-2:] == shape)
    shown = (square[square > HIDDEN] for square in squares)
    return any(bool(part.any()) and bool(((part == 0) | (part == 1)).all()) for part in shown)


def _fused(index: int, call: ModuleCall) -> AttentionCall:
    query, key = call.inputs[0], call.inputs[1]
    mask, T_q, T_k = call.argument(3, "attn_mask"), query.shape[-2], key.shape[-2]
    allowed, strength = _allowed(mask, T_q, T_k, true_means_seen=True)
    if call.argument(5, "is_causal"):
        allowed, strength = allowed.tril(), float("inf")
    scores = None
    if query.shape[-1] == key.shape[-1]:
        if key.dim() == 4 and query.dim() == 4 and key.shape[1] != query.shape[1]:  # grouped queries
            key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scale = call.options["kwargs"].get("scale") or query.shape[-1] ** -0.5
        scores = query @ key.transpose(-2, -1) * scale
        scores = scores if mask is None or mask.dtype == torch.bool else scores + mask.to(scores.device)
        scores = scores.reshape(-1, T_q, T_k)
    parts = [call.argument(number, name) for number, name in enumerate(("query", "key", "value"))]
    return AttentionCall(index, call, allowed, strength, scores=scores, query=parts[0], key=parts[1], value=parts[2])


def _whole(index: int, call: ModuleCall) -> AttentionCall:
    kwargs = call.options["kwargs"]
    n, m = call.inputs[0].shape[0], call.inputs[1].shape[0]  # torch's own is time first here
    allowed, strength = _allowed(kwargs.get("attn_mask"), n, m, true_means_seen=False)
    if kwargs.get("is_causal") and kwargs.get("attn_mask") is None:
        allowed, strength = allowed.tril(), float("inf")
    padding = kwargs.get("key_padding_mask")  # (B, T_k), True or -inf where nothing may be read
    if padding is not None:
        real = ~padding if padding.dtype == torch.bool else padding > HIDDEN
        allowed = allowed & real.reshape(-1, m).any(0)
    return AttentionCall(index, call, allowed, strength)


def _allowed(mask: Tensor | None, T_q: int, T_k: int, *, true_means_seen: bool) -> tuple[Tensor, float | None]:
    if mask is None:
        return torch.ones(T_q, T_k, dtype=torch.bool), None
    mask = mask.cpu()
    is_bool = mask.dtype == torch.bool
    visible = (mask if true_means_seen else ~mask) if is_bool else mask > HIDDEN
    visible = visible.expand(*visible.shape[:-2], T_q, T_k) if visible.dim() >= 2 else visible.expand(T_q, T_k)
    visible = visible.reshape(-1, T_q, T_k).any(0)
    if not visible.all():
        return visible, float("inf")
    if is_bool or T_q != T_k:
        return visible, None
    whole = mask.expand(*mask.shape[:-2], T_q, T_k).reshape(-1, T_q, T_k)
    future = torch.ones(T_q, T_k, dtype=torch.bool).triu(1)
    drop = float((whole[:, ~future].amin(-1) - whole[:, future].amax(-1)).max()) if future.any() else 0.0
    return visible, drop if drop > 0 else None  # unless it puts later scores below earlier ones, it hides nothing


def scale_of(flow: Flow, attention: AttentionCall) -> float | None:
    """What the product of the projections is multiplied by before the softmax; None if it is normalized or unknown.

    Factors between the projections and the product count as well: the queries may have been scaled before.
    """
    assert attention.query is not None
    assert attention.key is not None
    index, product = attention.index, attention.score_product
    if attention.call.name == FUSED:
        scale = attention.call.options["kwargs"].get("scale")
        scale = attention.query.shape[-1] ** -0.5 if scale is None else float(scale)
    elif product is None:
        return None
    else:
        source = next(t for t in read_by(attention.call) if t.is_floating_point())
        branch = flow.way_back(source, index, lambda call: call is product.call, limit=14)
        index, scale = product.index, factor_along(flow, branch)
    between = scale_between(flow, index, (attention.query, attention.key))
    return None if between is None else scale * between
