"""The attention's arithmetic: along which axis it is normalized, how it is scaled, what is dropped, what is added."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.checks.locations import place_of
from clearhead.doctor.checks.parts.heads import groups
from clearhead.doctor.probes.attention import FUSED, HIDDEN, AttentionCall, attentions, same_tensor
from clearhead.doctor.probes.flow import ADD, Flow, read_by
from clearhead.doctor.probes.products import KEEPING, LINEAR, PRODUCTS, RESHAPING, fused_scale, scale_of
from clearhead.doctor.probes.tracing import dropout_probability, recorded_ops
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

SCORES = re.compile(r"scor|att|qk|dot")
FAR = 2.0  # times 1 / sqrt(K), from where a scale is another one; DeBERTa has 0.58
NEAR = 0.4
TURNING = {"transpose", "swapaxes", "permute", "t", "__get__", "chunk", "split", "unbind", "__iter__"}
PLAIN_STEPS = 8  # between a projection and the attention that reads it
ALIKE = 1.3  # how far the spread of queries may be from that of keys, and still make up for a missing scale


@model_check(
    "A03",
    "attention",
    order=90,
    covers=("A01", "A02", "A03", "A07", "A09", "A14", "P13"),
    holds="weights sum to one over the keys, scores have the right size, and a head reads one head's keys and values",
    needs=("finite", "layouts"),
)
def attention(subject: Subject) -> list[Finding]:
    """Weights sum to one over what they are applied to, scores are scaled, and only weights are dropped."""
    calls = subject.inside.calls
    maps = list(attentions(calls))
    if not maps:
        raise Skipped("no attention was found among its operations")
    return (
        _wrong_axis(subject, maps)
        + _dropped_scores(subject)
        + _shared(subject, maps, Flow(calls))
        + groups(subject, maps)
        + _slopes(subject, maps, Flow(calls))
        + _scales(subject)
    )


def _wrong_axis(subject: Subject, maps: Sequence[AttentionCall]) -> list[Finding]:
    lengths = {n + more for n in (subject.calling.T, subject.calling.S) for more in (0, 1, 2)}
    for attention in maps:
        product = attention.value_product
        if not attention.axis_is_wrong or product is None or not {*attention.allowed.shape} <= lengths:
            continue
        weights = attention.call.outputs[0].movedim((product.kept, product.summed), (-2, -1)).sum(-1)
        off = float((weights - 1).abs().max())
        if off < 1e-3:
            continue
        at = weights.flatten()[int((weights - 1).abs().argmax())]
        witness = (
            f"the weights with which one position reads sum to {float(at):.3f}: the softmax runs along another axis"
        )
        return [finding("A03", witness, value=off, threshold=1e-3, where=place_of(subject, attention.call))]
    return []


def _dropped_scores(subject: Subject) -> list[Finding]:
    """In training, a dropped weight is gone; a score that is dropped before the softmax becomes an even chance."""
    if not any(dropout_probability(call) for call in subject.inside_training.calls):
        return []
    with torch.no_grad(), subject.training(), recorded_ops() as ops:
        subject.run(subject.inputs(2))
    flow = Flow(ops.calls)
    for attention in attentions(ops.calls):
        if attention.score_product is None:
            continue
        scores = next(t for t in read_by(attention.call) if t.is_floating_point())
        product = attention.score_product.call
        for index in flow.way_back(scores, attention.index, lambda call, product=product: call is product):  # type: ignore[misc]
            call = ops.calls[index]
            p = dropout_probability(call)
            if not p or not call.outputs or not call.inputs:
                continue
            gone = (call.outputs[0] == 0) & (call.inputs[0] != 0)
            left = attention.call.outputs[0].expand_as(gone) if attention.call.outputs[0].shape == gone.shape else None
            if left is None or not gone.any() or not bool((left[gone] > 0).any()):
                continue
            largest = float(left[gone].max())
            witness = f"in training a score that dropout (p={p:g}) took away still has weight {largest:.3f}"
            return [finding("A09", witness, value=largest, where=place_of(subject, call))]
    return []


def _shared(subject: Subject, maps: Sequence[AttentionCall], flow: Flow) -> list[Finding]:
    for attention in maps:
        if attention.query is None or attention.key is None or not _is_projected(flow, attention, attention.key):
            continue
        for names, other in (("queries and keys", attention.query), ("keys and values", attention.value)):
            if same_tensor(other, attention.key) or same_tensor(other, attention.key.mT):
                witness = f"{names} are the same numbers"
                return [finding("A14", witness, where=place_of(subject, attention.call), status="warn")]
    return []


def _is_projected(flow: Flow, attention: AttentionCall, key: Tensor) -> bool:
    """Whether keys are the output of a matrix, but for their shape, and no memory that is read as it is."""
    before, tensor = attention.index, key
    for _ in range(PLAIN_STEPS):
        index = flow.maker(tensor, before)
        if index is None:
            return False
        call = flow.calls[index]
        if call.name not in TURNING | RESHAPING | KEEPING:
            return call.name in LINEAR | PRODUCTS
        before, tensor = index, next(t for t in read_by(call) if t.is_floating_point())
    return False


def _slopes(subject: Subject, maps: Sequence[AttentionCall], flow: Flow) -> list[Finding]:
    """A bias that changes by the same amount per token prefers what is near, and lets what is further be seen."""
    for attention in maps:
        for bias in _added(attention, flow):
            slope = _slope(bias, attention.allowed)
            if slope is None or bool(((slope > 0) & (slope <= 1.0001)).all()):
                continue
            steep = float(slope.abs().max())
            what = "favours what is far" if (slope < 0).any() else f"takes {steep:g} from a score per token"
            witness = (
                f"the bias that grows with the distance {what}; slopes run from {float(slope.min()):g} to {steep:g}"
            )
            return [
                finding(
                    "P13", witness, value=steep, threshold=1, where=place_of(subject, attention.call), status="warn"
                )
            ]
    return []


def _added(attention: AttentionCall, flow: Flow) -> list[Tensor]:
    """What was added to the product of queries and keys."""
    if attention.call.name == FUSED:
        args, kwargs = attention.call.options["args"], attention.call.options["kwargs"]
        mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        return [mask] if isinstance(mask, Tensor) and mask.is_floating_point() else []
    if attention.score_product is None:
        return []
    product = attention.score_product.call
    weights_in = next(t for t in read_by(attention.call) if t.is_floating_point())
    branch = flow.way_back(weights_in, attention.index, lambda call: call is product)
    calls = [flow.calls[index] for index in branch]
    return [t for call in calls if call.name in ADD | {"baddbmm"} for t in read_by(call) if t.is_floating_point()]


def _slope(bias: Tensor, allowed: Tensor) -> Tensor | None:
    """By how much a bias rises from one key to the next, per head; None if that is not one number per head."""
    T_q, T_k = allowed.shape
    if bias.dim() < 2 or bias.shape[-1] != T_k or bias.shape[-2] not in (1, T_q) or T_k < 4:
        return None
    whole = bias.detach().expand(*bias.shape[:-2], T_q, T_k).reshape(-1, T_q, T_k)
    row = whole[:, T_q - 1, : min(T_q, T_k) - 1]  # the last query's, over the keys before it
    if not (row > HIDDEN).all():
        return None
    steps = row.diff(dim=-1)  # (N, keys - 1)
    slope = steps.mean(-1)
    even = (steps - slope[:, None]).abs().amax(-1) <= 1e-3 * slope.abs()
    return slope if bool(even.all()) and bool((slope.abs() > 1e-6).all()) else None


def _scales(subject: Subject) -> list[Finding]:
    """Scores are products divided by the root of their width, or something else makes up for it."""
    calls = subject.inside_fresh.calls
    flow = Flow(calls)
    for attention in attentions(calls):
        if attention.query is None or attention.key is None:
            continue
        scale, width = _scale(flow, attention)
        if scale is None or width < 4 or _is_declared(subject, scale):
            continue
        ratio = scale * width**0.5
        if NEAR <= ratio <= FAR or abs(scale * width - 1) < 1e-3 or _made_up_for(attention, ratio):
            continue
        witness = (
            f"scores are {scale:.3g} times the product of queries and keys; 1 / sqrt({width}) is {width**-0.5:.3g}"
        )
        causes = (("A01", 0.9), ("A02", 0.1)) if ratio > FAR else (("A02", 0.9), ("A01", 0.1))
        return [
            finding(causes, witness, value=ratio, threshold=FAR, where=place_of(subject, attention.call), status="warn")
        ]
    return []


def _scale(flow: Flow, attention: AttentionCall) -> tuple[float | None, int]:
    assert attention.query is not None
    assert attention.key is not None
    if attention.call.name == FUSED:
        width = attention.query.shape[-1]
        own = attention.call.options["kwargs"].get("scale")
        return fused_scale(
            flow, attention.index, attention.query, attention.key, width**-0.5 if own is None else float(own)
        ), width
    if attention.score_product is None:
        return None, 0
    equation = attention.score_product.call.options["args"][0]
    width = _summed_size(equation, attention.query) if isinstance(equation, str) else attention.query.shape[-1]
    return scale_of(flow, attention.index, attention.score_product), width


def _summed_size(equation: str, first: Tensor) -> int:
    """The size of the axis that an equation of two tensors sums over; 0 if that cannot be told."""
    if "->" not in equation or "." in equation:
        return 0
    inputs, output = equation.replace(" ", "").split("->")
    ours, right = inputs.split(",")
    letters = [letter for letter in ours if letter in right and letter not in output]
    return first.shape[ours.index(letters[0])] if len(letters) == 1 and len(ours) == first.dim() else 0


def _is_declared(subject: Subject, scale: float) -> bool:
    """Whether the model's config speaks of this very scale."""
    config = getattr(subject.original, "config", None)
    settings = vars(config).items() if hasattr(config, "__dict__") else ()
    declared = [(name, value) for name, value in settings if "scal" in name or "multipl" in name]
    if abs(scale - 1) < 1e-3 and any(value is False and SCORES.search(name) for name, value in declared):
        return True  # scaling is an option of it, and switched off
    values = [float(v) for _, v in declared if isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0]
    return any(abs(factor / scale - 1) < 1e-3 for value in values for factor in (value, 1 / value, value**-0.5))


def _made_up_for(attention: AttentionCall, ratio: float) -> bool:
    """Whether the fresh queries are smaller than the keys by just what the scale lacks."""
    assert attention.query is not None
    assert attention.key is not None
    spread = float(attention.query.std() / attention.key.std().clamp_min(1e-12)) * ratio
    return 1 / ALIKE < spread < ALIKE
