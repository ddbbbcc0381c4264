"""Heads that are split and merged without moving their axis: tokens then hold pieces of each other."""

import torch

from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.checks.locations import place_of
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.layout import distances, scrambled
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

ROWS = (5, 11, 19)  # the last is a size that no other axis is likely to have


@model_check(
    "A05",
    "layouts",
    order=50,
    covers=("A04", "A05"),
    holds="no view or reshape moves numbers from one token or row to another",
    needs=("finite",),
)
def layouts(subject: Subject) -> list[Finding]:
    """No view or reshape puts numbers of one token, or of one row, in the place of another."""
    with attempt() as attempted:
        rows = _rows(subject)
        inputs = subject.inputs(1).rows(torch.zeros(rows, dtype=torch.long))
        operations = subject.operations(inputs)
    if attempted.failed:
        raise Skipped(f"its operations cannot be watched ({attempted.kind})")
    sizes = {subject.calling.T: "token", rows: "row"} | (
        {subject.calling.S: "token"} if subject.convention.has_source else {}
    )
    scrambles = [(spot, noun) for size, noun in sizes.items() if (spot := scrambled(operations, size)) is not None]
    if not scrambles:
        return []
    spot, noun = min(scrambles, key=lambda scramble: scramble[0].index)
    behind = [attention.index for attention in attentions(operations) if attention.index < spot.index]
    merging = bool(behind) and spot.index - behind[-1] <= 6
    causes = (("A05", 0.9), ("A04", 0.1)) if merging else (("A04", 0.9), ("A05", 0.1))
    witness = f"after '{spot.call.name}' {noun} {spot.position} holds numbers of {noun} {spot.token}"
    return [finding(causes, witness, where=place_of(subject, spot.call))]


def _rows(subject: Subject) -> int:
    """As few rows as are told from every other axis."""
    tensors = (tensor for call in subject.inside.calls for tensor in (*call.inputs, *call.outputs))
    taken = {size for tensor in tensors for size in tensor.shape}
    return next((rows for rows in ROWS if not {rows, *distances(rows)} & taken), ROWS[-1])
