"""Whether heads are put together as they were taken apart, whatever the sizes of their axes are.

Were the weights of an attention those by which each token sees itself alone, its output projection would read at each
place what its value projection made at one place.
"""

from collections import Counter
from statistics import median_low

import torch
from torch import Tensor

from clearhead.doctor.checks.base import Causes, Finding, Subject, finding
from clearhead.doctor.probes.attention import FUSED, AttentionCall
from clearhead.doctor.probes.flow import Flow
from clearhead.doctor.probes.products import CARRYING, LINEAR, axes_of_weights
from clearhead.doctor.probes.tracing import ModuleCall

MOVING = CARRYING | {"chunk", "split", "unbind", "__iter__", "_unsafe_view"}  # the same numbers elsewhere
KNOWN = 0.99  # of the numbers must be those of the projection: any other operation changes all of them
SHARE = 0.1  # of a vector, from which on a token has a part in it
VECTORS = 32  # that are looked at; nearly all are parted, or none
STEPS = 12  # operations between an attention and a projection


def parted_tokens(subject: Subject) -> Finding | None:
    """A projection that reads vectors made of parts of several tokens."""
    flow = subject.inside.flow
    for attention in subject.attentions:
        tokens, merged = _tokens_of(flow, attention), _merged(flow, attention)
        if tokens is None or merged is None:
            continue
        vector_of, length = tokens
        source = _found_in(merged.inputs[0], flow.calls[_end_of(attention)].outputs[0])
        if source is None:
            continue
        read = vector_of.flatten()[source].reshape(-1, merged.inputs[0].shape[-1])
        parts = median_low(_parts(vector, vector_of) for vector in read[:: 1 + len(read) // VECTORS])
        if 1 < parts <= length // 2:
            witness = f"the projection behind the heads reads vectors made of parts of {parts} tokens each"
            return finding(_causes(vector_of), witness, value=parts, threshold=1, where=subject.place_of(merged))
    return None


def _end_of(attention: AttentionCall) -> int:
    """The operation that makes the output of the heads."""
    return attention.index if attention.value_product is None else attention.value_product.index


def _tokens_of(flow: Flow, attention: AttentionCall) -> tuple[Tensor, int] | None:
    """Which vector of the value projection each number of the output would be from, and how many a row has of them."""
    call, value = flow.calls[_end_of(attention)], attention.value
    if value is None or (attention.call.name != FUSED and attention.value_product is None):
        return None
    branch = flow.way_back(value, _end_of(attention), lambda call: call.name in LINEAR)
    if not branch or any(flow.calls[at].name not in MOVING for at in branch[:-1]):
        return None
    projected = flow.calls[branch[-1]].outputs[0]
    source = _found_in(value.detach().cpu(), projected)
    if source is None or projected.dim() < 3:
        return None
    tokens = (source // projected.shape[-1]).reshape(value.shape).double()
    if attention.value_product is None:
        return (tokens, projected.shape[-2]) if tokens.shape == call.outputs[0].shape else None
    is_first = attention.value_product.first is not value
    weights = call.inputs[0 if is_first else 1]
    axes = axes_of_weights(call, weights, is_first)
    if axes is None or weights.shape[axes[0]] != weights.shape[axes[1]]:
        return None
    alone = torch.eye(weights.shape[axes[0]], dtype=torch.double)
    itself = alone.expand(*weights.movedim(axes, (-2, -1)).shape).movedim((-2, -1), axes)
    pair = (itself, tokens) if is_first else (tokens, itself)
    output = torch.einsum(call.options["args"][0], *pair) if call.name == "einsum" else torch.matmul(*pair)
    return output.long(), projected.shape[-2]


def _merged(flow: Flow, attention: AttentionCall) -> ModuleCall | None:
    """The projection that reads the output of an attention, moved and otherwise as it is."""
    open_ = [(_end_of(attention), 0)]
    while open_:
        at, steps = open_.pop()
        for reader in flow.readers(at) if steps < STEPS else []:
            call = flow.calls[reader]
            if call.name == "linear" and call.inputs[0].dim() > 1:
                return call
            if call.name in MOVING:
                open_.append((reader, steps + 1))
    return None


def _found_in(numbers: Tensor, among: Tensor) -> Tensor | None:
    """Where each number stands in another tensor, as flat indices; None if they are others."""
    known, places = among.flatten().sort(stable=True)  # of equal numbers, as of a class token in all rows, the first
    at = torch.searchsorted(known, numbers.flatten()).clamp(max=len(known) - 1)
    is_known = float((known[at] == numbers.flatten()).float().mean()) >= KNOWN
    return places[at] if is_known and float((known.diff() > 0).float().mean()) >= KNOWN else None


def _parts(vector: Tensor, tokens: Tensor) -> int:
    """Of how many tokens a vector holds a part, and not the whole."""
    counts = Counter(vector.tolist())
    parts = [(number, count) for number, count in counts.items() if count >= SHARE * len(vector)]
    whole = sum(count >= KNOWN * int((tokens == number).sum()) for number, count in parts)
    return len(parts) - whole if len(parts) > 1 else 0


def _causes(tokens: Tensor) -> Causes:
    """Heads were split rightly if all numbers of a token stand along two axes, of heads and of their widths."""
    axes = range(tokens.dim() - 1)
    is_split = any(bool((tokens == tokens.narrow(axis, 0, 1)[..., :1]).all()) for axis in axes)
    return (("A05", 0.9), ("A04", 0.1)) if is_split else (("A04", 0.6), ("A05", 0.4))
