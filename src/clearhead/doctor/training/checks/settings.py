"""What an optimizer was told that it cannot have been meant to do."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.recording import Recording

STRONG = 0.05  # weight decay from which what it does to a gain or a bias is seen; torch's own default is 0.01
DECOUPLED = 0.01  # a decay of this size is meant for AdamW; as a part of Adam's gradient it does something else
COUPLED = ("Adam", "NAdam", "RAdam", "Adamax")


@training_check(
    "O03", "settings", order=90, covers=("O03", "O05", "O06"), holds="decay and moments are as they usually are"
)
def settings(recording: Recording) -> list[Finding]:
    """Decay, moments and epsilon of every optimizer that stepped."""
    groups = [(owner, group) for owner in recording.stepping for group in getattr(owner, "param_groups", ())]
    if not groups:
        raise Skipped("no optimizer of torch stepped")
    findings: dict[str, Finding] = {}
    for optimizer, group in groups:
        for owner in _of_group(recording, type(optimizer).__name__, group):
            findings.setdefault(owner.id, owner)
    return list(findings.values())


def _of_group(recording: Recording, name: str, group: Mapping[str, Any]) -> Iterator[Finding]:
    decay = float(group.get("weight_decay") or 0.0)
    vectors = [p for p in group["params"] if p.dim() < 2 and p.requires_grad and id(p) in recording.names]
    if decay >= STRONG and vectors:
        witness = f"{recording.listed(vectors)} decay by {decay:g} like the matrices"
        yield _warn(recording, "O03", witness, decay, STRONG, vectors[0])
    if decay >= DECOUPLED and name in COUPLED and not group.get("decoupled_weight_decay", False):
        witness = f"weight_decay={decay:g} of {name} is added to the gradient, and divided by its size again"
        yield _warn(recording, "O05", witness, decay, DECOUPLED, group["params"][0])
    betas = group.get("betas")
    if betas is not None and len(betas) > 1 and float(betas[0]) > float(betas[1]):
        witness = f"betas are {float(betas[0]):g}, {float(betas[1]):g}: the squares are forgotten before the means"
        yield _warn(recording, "O06", witness, float(betas[0]), float(betas[1]), group["params"][0])
    half = [parameter for parameter in group["params"] if parameter.dtype == torch.float16]
    smallest = 2.0**-24
    if half and 0 < float(group.get("eps") or 0.0) < smallest / 2:
        witness = f"eps={float(group['eps']):g} is 0 in float16, whose smallest number is {smallest:.1e}"
        yield _warn(recording, "O06", witness, float(group["eps"]), smallest, half[0])


def _warn(
    recording: Recording, id: str, witness: str, value: float, threshold: float, parameter: nn.Parameter
) -> Finding:
    where = recording.where(parameter)
    return finding(id, witness, value=value, threshold=threshold, where=where, status="warn")
