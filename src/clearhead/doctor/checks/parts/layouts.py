"""Heads that are split and merged without moving their axis: tokens then hold pieces of each other."""

from collections.abc import Sequence

import torch

from clearhead.doctor.checks.base import Causes, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.layout import are_judged, distances, scrambled

ROWS = (5, 11, 19)  # the last is a size that no other axis is likely to have


@model_check("A05", "layouts", order=50, covers=("A04",), needs=("finite",))
def layouts(subject: Subject) -> list[Finding]:
    """No view or reshape moves numbers from one token or row to another."""
    with attempt() as attempted:
        tensors = (tensor for call in subject.inside.calls for tensor in (*call.inputs, *call.outputs))
        sizes = {size for tensor in tensors for size in tensor.shape}
        rows = next((rows for rows in ROWS if not {rows, *distances(rows)} & sizes), ROWS[-1])
        operations = subject.operations(subject.inputs(1).rows(torch.zeros(rows, dtype=torch.long)))
    if attempted.failed:
        raise Skipped(f"its operations cannot be watched ({attempted.kind})")
    maps = list(attentions(operations))
    axes = {size: "token" for attention in maps for size in attention.allowed.shape if size > 2}  # patches are tokens
    axes |= {subject.calling.T: "token", rows: "row"}
    axes |= {subject.calling.S: "token"} if subject.convention.has_source else {}
    scrambles = [(spot, noun) for size, noun in axes.items() if (spot := scrambled(operations, size)) is not None]
    if not scrambles and not any(are_judged(operations, size) for size in axes):
        raise Skipped("no view or reshape of its tokens can be followed")
    if not scrambles:
        return []
    spot, noun = min(scrambles, key=lambda scramble: scramble[0].index)
    witness = f"after '{spot.call.name}', {noun} {spot.position} holds numbers of {noun} {spot.token}"
    causes = reshape_causes(spot.index, maps)
    return [finding(causes, witness, where=subject.place_of(spot.call))]


def reshape_causes(index: int, maps: Sequence[AttentionCall]) -> Causes:
    """Heads are split before the attention and merged just after it."""
    before = [attention.index for attention in maps if attention.index < index]
    merging = bool(before) and index - before[-1] <= 6
    return (("A05", 0.9), ("A04", 0.1)) if merging else (("A04", 0.9), ("A05", 0.1))
