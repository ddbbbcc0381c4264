"""The attention's arithmetic: where it is normalized, how it is scaled, what is dropped or added, which heads share."""

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.doctor.calling.names import code_of
from clearhead.doctor.checks.base import Causes, Finding, Skipped, Status, Subject, finding, model_check
from clearhead.doctor.probes.attention import FUSED, HIDDEN, AttentionCall, attentions, scale_of
from clearhead.doctor.probes.flow import ADD, Flow, read_by
from clearhead.doctor.probes.locations import is_own, owners_of
from clearhead.doctor.probes.products import CARRYING, LINEAR, PRODUCTS, einsum_letters, is_map
from clearhead.doctor.probes.tensors import is_same
from clearhead.doctor.probes.tracing import dropout_probability, recorded_ops

SCORES = re.compile(r"scor|att|qk|dot")
ROOT, MUP = re.compile(r"sqrt|\*\*[\s(-]{0,8}(0?\.5|1 ?/ ?2)"), re.compile(r"\bmup\b|maximal update", re.I)
REVERSED = re.compile(r"\bbackwards?\b(?!\()|right[- _]to[- _]left|\br2l\b|revers", re.I)
NEAR, FAR = 0.4, 2.0  # times 1 / sqrt(K), between which a scale is the usual one; DeBERTa has 0.58
HEADS = re.compile(r"^(n|num|nr|number)_?(of_)?(attention_|attn_)?heads?$|^heads$|^h$")
PARTING = {"chunk", "split", "unbind", "__iter__"}
PLAIN_STEPS = 8  # between a projection and the attention that reads it
SLANTED = 0.3  # how far the slope of the scores may be from the scale: biases are added to them
ALIKE = 1.3  # how far the spread of queries may be from that of keys, and still make up for a missing scale


@model_check("A03", "attention", order=90, covers=("A09", "A12", "A14", "M04", "P13"), needs=("finite", "layouts"))
def attention(subject: Subject) -> list[Finding]:
    """Attention weights sum to one over the keys, and not over later ones alone; queries, keys and values differ."""
    maps, flow = subject.attentions, subject.inside.flow
    if not maps:
        raise Skipped("no attention was found among its operations")
    return (
        _wrong_axis(subject, maps)
        + _without_choice(subject, maps)
        + _backwards(subject, maps)
        + _dropped_scores(subject)
        + _shared(subject, maps, flow)
        + _slopes(subject, maps, flow)
    )


def _wrong_axis(subject: Subject, maps: Sequence[AttentionCall]) -> list[Finding]:
    lengths = {n + more for n in (subject.calling.T, subject.calling.S) for more in (0, 1, 2)}
    for attention in maps:
        product = attention.value_product
        if not attention.axis_is_wrong or product is None or not {*attention.allowed.shape} <= lengths:
            continue
        weights = attention.call.outputs[0].movedim((product.kept, product.summed), (-2, -1)).sum(-1)
        off = float((weights - 1).abs().max())
        if off >= 1e-3:
            at = weights.flatten()[int((weights - 1).abs().argmax())]
            witness = f"the weights of a query sum to {float(at):.3f}: the softmax runs along another axis"
            return [finding("A03", witness, value=off, threshold=1e-3, where=subject.place_of(attention.call))]
    return []


def _without_choice(subject: Subject, maps: Sequence[AttentionCall]) -> list[Finding]:
    """In every attention each query may look at a single key, whose weight is 1 whatever the two are."""
    maps = [attention for attention in maps if attention.allowed.shape[-1] > 1]
    if not maps or subject.convention.stepwise or any((attention.allowed.sum(-1) > 1).any() for attention in maps):
        return []
    witness, against = "in every attention each query may look at one key only", "a softmax, which is there to choose"
    causes = (("A12", 0.7), ("M04", 0.15), ("M13", 0.15))
    return [finding(causes, witness, where=subject.place_of(maps[0].call), against=against)]


def _backwards(subject: Subject, maps: Sequence[AttentionCall]) -> list[Finding]:
    """A mask of the model's own that hides the past and shows the future, where no other does the reverse."""
    is_ours = any("causal" in filler for _, filler in subject.convention.call)
    if is_ours or REVERSED.search(subject.hints.code):
        return []
    squares = [attention for attention in maps if len({*attention.allowed.shape}) == 1 < len(attention.allowed)]
    ahead = [a for a in squares if a.allowed.triu(1).any() and not a.allowed.tril(-1).any()]
    is_both = any(a.allowed.tril(-1).any() and not a.allowed.triu(1).any() for a in squares)
    if not ahead or is_both:
        return []
    witness = "in an attention, tokens may look at those that come later, and at none that came before"
    against = "any order in which tokens are read or written"
    return [finding((("M04", 0.9), ("M05", 0.1)), witness, where=subject.place_of(ahead[0].call), against=against)]


def _dropped_scores(subject: Subject) -> list[Finding]:
    """In training, dropout must take away weights: a score that it sets to zero before the softmax keeps a weight."""
    if not any(dropout_probability(call) for call in subject.inside_training.calls):
        return []
    inputs = subject.inputs(2)
    with torch.no_grad(), subject.training(), recorded_ops() as ops:
        subject.convention.logits(subject.model, inputs)
    flow = Flow(ops.calls)
    for attention in attentions(ops.calls, flow):
        weights = attention.call.outputs[0] if attention.call.outputs else None
        for index in _back_to_product(attention, flow):
            call = ops.calls[index]
            p = dropout_probability(call)
            if not p or not call.outputs or not call.inputs or weights is None:
                continue
            gone = (call.outputs[0] == 0) & (call.inputs[0] != 0)
            if weights.shape == gone.shape and bool((weights[gone] > 0).any()):
                largest = float(weights[gone].max())
                witness = f"in training, a score that dropout (p={p:g}) set to zero still has weight {largest:.3f}"
                return [finding("A09", witness, value=largest, where=subject.place_of(call))]
    return []


def _back_to_product(attention: AttentionCall, flow: Flow) -> list[int]:
    """The operations from the softmax back to the product of queries and keys."""
    if attention.score_product is None:
        return []
    product = attention.score_product.call
    scores = next(t for t in read_by(attention.call) if t.is_floating_point())
    return flow.way_back(scores, attention.index, lambda call: call is product)


def _shared(subject: Subject, maps: Sequence[AttentionCall], flow: Flow) -> list[Finding]:
    for attention in maps:
        key = attention.key
        if attention.query is None or key is None or not _is_projected(flow, attention, key):
            continue
        for names, other in (("queries and keys", attention.query), ("keys and values", attention.value)):
            if is_same(other, key) or is_same(other, key.mT):
                where = subject.place_of(attention.call)
                return [finding("A14", f"{names} are the same numbers", where=where)]
    return []


def _is_projected(flow: Flow, attention: AttentionCall, key: Tensor) -> bool:
    """Whether keys are the output of a matrix, apart from their shape, and not a memory that is read as it is."""
    before, tensor = attention.index, key
    for _ in range(PLAIN_STEPS):
        index = flow.maker(tensor, before)
        if index is None:
            return False
        call = flow.calls[index]
        if call.name not in CARRYING | PARTING:
            return call.name in LINEAR | PRODUCTS
        before, tensor = index, next(t for t in read_by(call) if t.is_floating_point())
    return False


def _slopes(subject: Subject, maps: Sequence[AttentionCall], flow: Flow) -> list[Finding]:
    """A bias that changes by the same amount per token prefers near tokens, and does not shut out far ones."""
    for attention in maps:
        for bias in _added(attention, flow):
            slope = _slope(bias, attention.allowed)
            if slope is None or bool(((slope > 0) & (slope <= 1.0001)).all()):
                continue
            steep, where = float(slope.abs().max()), subject.place_of(attention.call)
            effect = "favors far tokens" if (slope < 0).any() else f"lowers a score by {steep:g} per token"
            witness = f"a bias linear in the distance {effect}: slopes run from {float(slope.min()):g} to {steep:g}"
            return [finding("P13", witness, value=steep, threshold=1, where=where)]
    return []


def _added(attention: AttentionCall, flow: Flow) -> list[Tensor]:
    """What was added to the product of queries and keys."""
    if attention.call.name == FUSED:
        mask = attention.call.argument(3, "attn_mask")
        return [mask] if isinstance(mask, Tensor) and mask.is_floating_point() else []
    calls = [flow.calls[index] for index in _back_to_product(attention, flow)]
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


@model_check("A01", "scales", order=95, covers=("A02",), needs=("finite",))
def scales(subject: Subject) -> list[Finding]:
    """Scores are products divided by the root of a head's width, unless something else makes up for it."""
    flow, maps = subject.inside_fresh.flow, subject.inside_fresh.attentions
    if not maps:
        raise Skipped("no attention was found among its operations")
    for attention, again in zip(maps, subject.attentions, strict=False):
        if attention.query is None or attention.key is None:
            continue
        scale, width = _scale(flow, attention, attention.query)
        if scale is None or width < 4 or _is_declared(subject, scale):
            continue
        if _scale(subject.inside.flow, again, again.query)[0] != scale or not (
            _shows(attention, scale) and _shows(again, scale)
        ):
            continue  # it is learned, or something else divides the scores
        ratio, where = scale * width**0.5, subject.place_of(attention.call)
        is_persons = is_own(subject.model, where.module)
        sizes = _other_sizes(subject, flow, attention, width)
        other = next((size for size in sizes if _is_root(scale, size[0])), None)
        if is_persons and other is not None:
            witness = f"scores are divided by sqrt({other[0]}), the {other[1]}, and not by sqrt({width})"
            # 1 / K, where that is the same, may be meant by code that takes no root, as by muP's
            own_code = code_of(subject.model.get_submodule(where.module or ""))
            takes_roots = ROOT.search(own_code) and not MUP.search(subject.hints.code)
            is_sure = abs(scale * width - 1) > 1e-3 or bool(takes_roots)
            causes: Causes = (("A01", 0.8), ("A02", 0.2))
            status: Status = "fail" if is_sure else "warn"
            return [finding(causes, witness, value=ratio, threshold=1, where=where, status=status)]
        # fresh queries may be smaller than keys by just what the scale lacks
        spread = float(attention.query.std() / attention.key.std().clamp_min(1e-12)) * ratio
        if NEAR <= ratio <= FAR or abs(scale * width - 1) < 1e-3 or 1 / ALIKE < spread < ALIKE:
            continue
        witness = f"scores are {scale:.3g} times queries times keys; 1 / sqrt({width}) is {width**-0.5:.3g}"
        causes = (("A01", 0.9), ("A02", 0.1)) if ratio > FAR else (("A02", 0.9), ("A01", 0.1))
        is_turned = abs(scale / width**0.5 - 1) < 1e-3 and not _are_of_one_length(attention.query)
        is_told = attention.call.name == FUSED and attention.call.options["kwargs"].get("scale") is not None
        is_sure = (abs(scale - 1) < 1e-3 and not is_told) or is_turned  # another number may be a choice
        status = "fail" if is_persons and is_sure else "warn"
        return [finding(causes, witness, value=ratio, threshold=FAR, where=where, status=status)]
    return []


def _shows(attention: AttentionCall, scale: float) -> bool:
    """Whether scores rise with the products by this scale: those of cosines are divided by lengths as well."""
    product = None if attention.score_product is None else attention.score_product.call.outputs[0]
    if attention.scores is None or product is None or product.numel() != attention.scores.numel():
        return True
    # of the product and of what the softmax reads, either may have its axes in the usual order
    return any(_rises(product, scores, scale) for scores in (attention.call.inputs[0], attention.scores))


def _rises(product: Tensor, read: Tensor, scale: float) -> bool:
    """Whether numbers that are hidden nowhere rise by this scale with those of a product, or were scaled as it was."""
    products, scores = (tensor.detach().float().flatten().cpu() for tensor in (product, read))
    products, scores = (part[scores > HIDDEN] for part in (products, scores))
    if not len(scores):
        return True
    products, scores = products - products.mean(), scores - scores.mean()
    slope = float((products * scores).sum() / products.square().sum().clamp_min(1e-12))
    return abs(slope / scale - 1) < SLANTED or abs(slope - 1) < 1e-3  # the products were scaled where they stand


def _are_of_one_length(vectors: Tensor) -> bool:
    """Whether vectors (..., K) have been normalized, in whatever way."""
    lengths = vectors.detach().norm(dim=-1)
    return float(lengths.std()) < 1e-2 * float(lengths.mean())


def _is_root(scale: float, size: int) -> bool:
    """Whether scores are divided by the root of this size."""
    return abs(scale * math.sqrt(size) - 1) < 1e-3


def _other_sizes(subject: Subject, flow: Flow, attention: AttentionCall, width: int) -> list[tuple[int, str]]:
    """Sizes of an attention whose root is taken by mistake for that of a head's width, and what they are."""
    query, (T_q, T_k), rows = attention.query, attention.allowed.shape, len(subject.inputs(2).ids)
    assert query is not None
    heads = list(query.shape[1:3]) if query.dim() == 4 else [max(1, len(query) // rows) if query.dim() == 3 else 1]
    if query.dim() == 4 and len(query) != rows and rows in heads:
        heads.remove(rows)  # time comes first
    sizes = [(width * number, "width of all heads together") for number in heads]  # on either side of the queries
    sizes += [(T_q, "number of queries"), (T_k, "number of keys")]
    if {*heads} == {1}:  # they were not split
        sizes += [
            (width // n, f"width of each of {n} heads") for n in _heads_told(subject, attention) if width % n == 0
        ]
    branch = flow.way_back(query, attention.index, is_map)
    sizes += [(flow.calls[branch[-1]].inputs[0].shape[-1], "width that queries are made from")] if branch else []
    return [(size, noun) for size, noun in sizes if size != width]


def _heads_told(subject: Subject, attention: AttentionCall) -> set[int]:
    """How many heads the module of an attention, or one around it, says that it has."""
    for _, module in owners_of(subject.model, subject.place_of(attention.call).module):
        numbers = {value for name, value in vars(module).items() if HEADS.search(name) and type(value) is int}
        if numbers:
            return numbers - {1}
    return set()


def _scale(flow: Flow, attention: AttentionCall, query: Tensor | None) -> tuple[float | None, int]:
    """What the product of the projections is multiplied by, None if it cannot be told, and the width of a head."""
    if query is None:
        return None, 0
    product = attention.score_product
    if product is None or product.call.name != "einsum":
        return scale_of(flow, attention), query.shape[-1]
    first, second, output = einsum_letters(product.call) or ("", "", "")
    summed = [letter for letter in first if letter in second and letter not in output]
    is_plain = len(summed) == 1 and len(first) == query.dim()
    return scale_of(flow, attention), query.shape[first.index(summed[0])] if is_plain else 0


def _is_declared(subject: Subject, scale: float) -> bool:
    """Whether the model's config mentions this very scale."""
    declared = [(name, value) for name, value in subject.settings.items() if "scal" in name or "multipl" in name]
    if abs(scale - 1) < 1e-3 and any(value is False and SCORES.search(name) for name, value in declared):
        return True  # scaling is one of its options, and switched off
    values = [float(v) for _, v in declared if isinstance(v, (int, float)) and not isinstance(v, bool) and v > 0]
    return any(abs(factor / scale - 1) < 1e-3 for value in values for factor in (value, 1 / value, value**-0.5))
