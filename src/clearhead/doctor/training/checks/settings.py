"""Options of an optimizer that cannot be meant."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.recording import Recording

STRONG = 0.05  # a weight decay that visibly shrinks gains and biases; torch's own default is 0.01
DECOUPLED = 0.01  # a decay of this size is meant for AdamW; as a part of Adam's gradient it does something else
COUPLED = ("Adam", "NAdam", "RAdam", "Adamax")
SMALLEST = 2.0**-24  # positive number of float16


@training_check(
    "O03", "settings", order=90, covers=("O03", "O05", "O06"), holds="decay and moments are as they usually are"
)
def settings(recording: Recording) -> list[Finding]:
    """Weight decay, betas and eps of every optimizer that stepped."""
    optimizers = {id(owner): owner for owner in [*recording.optimizers, *recording.event_log.kept]}
    stepped = [owner for key, owner in optimizers.items() if key in recording.by_optimizer]
    groups = [(owner, group) for owner in stepped for group in getattr(owner, "param_groups", ()) if group["params"]]
    if not groups:
        raise Skipped("no optimizer of torch stepped")
    findings: dict[str, Finding] = {}
    for optimizer, group in groups:
        for fault in _of_group(recording, type(optimizer).__name__, group):
            findings.setdefault(fault.id, fault)
    return list(findings.values())


def _of_group(recording: Recording, name: str, group: Mapping[str, Any]) -> Iterator[Finding]:
    decay, eps, betas = float(group.get("weight_decay") or 0), float(group.get("eps") or 0), group.get("betas")
    warn = partial(finding, status="warn")
    where = recording.where(group["params"][0])
    vectors = [p for p in group["params"] if p.dim() < 2 and p.requires_grad and id(p) in recording.names]
    if decay >= STRONG and vectors:
        witness = f"{recording.listed(vectors)} decay by {decay:g} like the matrices"
        yield warn("O03", witness, value=decay, threshold=STRONG, where=recording.where(vectors[0]))
    if decay >= DECOUPLED and name in COUPLED and not group.get("decoupled_weight_decay", False):
        witness = f"weight_decay={decay:g} of {name} is added to the gradient, and divided by its size again"
        yield warn("O05", witness, value=decay, threshold=DECOUPLED, where=where)
    if betas is not None and len(betas) > 1 and float(betas[0]) > float(betas[1]):
        first, second = map(float, betas[:2])
        witness = f"betas are {first:g}, {second:g}: the mean of squares forgets sooner than the mean"
        yield warn("O06", witness, value=first, threshold=second, where=where)
    half = [parameter for parameter in group["params"] if parameter.dtype == torch.float16]
    if half and 0 < eps < SMALLEST / 2:
        witness = f"eps={eps:g} is 0 in float16, whose smallest number is {SMALLEST:.1e}"
        yield warn("O06", witness, value=eps, threshold=SMALLEST, where=recording.where(half[0]))
