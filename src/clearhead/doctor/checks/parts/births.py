"""Whether every fresh weight can ever learn: a gradient that is zero now and stays zero is none."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.locations import owner_of
from clearhead.doctor.probes.tracing import without_dropout
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.state_guard import twin
from clearhead.doctor.subject import Subject

STEPS = 3
FAR = 0.1  # of a parameter's size, or at least this much: how far a step goes


@model_check(
    "I04",
    "births",
    order=280,
    covers=("I04",),
    holds="a gradient soon reaches what is zero at first",
    needs=("finite", "deterministic"),
    of_tokens=True,
)
def births(subject: Subject) -> list[Finding]:
    """Two matrices that are both zero and multiply each other hold each other at zero."""
    is_fresh, reason = freshness(subject.fresh, subject.spec.fresh)
    if is_fresh is False:
        raise Skipped(reason)
    zeros = {n for n, p in subject.fresh.named_parameters() if p.dim() > 1 and p.requires_grad and not p.any()}
    if len(zeros) < 2:
        return []
    model = twin(subject.fresh)
    stuck = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for _ in range(STEPS):
        stuck &= _untouched_by_a_step(subject, model)
    held = [name for name, _ in model.named_parameters() if name in stuck & zeros]
    if len(held) < 2 or not _learns(subject, held):
        return []
    witness = f"{held[0]} and {held[1]} are zero, and after {STEPS} steps no gradient has reached either of them"
    return [finding("I04", witness, value=0.0, where=owner_of(subject.fresh, held[0]))]


def _untouched_by_a_step(subject: Subject, model: nn.Module) -> set[str]:
    """Take one step down the loss of random targets, and tell which parameters had no gradient."""
    gradients = _gradients(subject, model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            gradient = gradients.get(name)
            if gradient is not None and gradient.any():
                size = max(float(parameter.abs().max()), FAR)
                parameter.sub_(FAR * size * gradient / gradient.abs().max())
    return {name for name, gradient in gradients.items() if gradient is None or not gradient.any()}


def _gradients(subject: Subject, model: nn.Module) -> dict[str, torch.Tensor | None]:
    inputs, targets = subject.inputs(4, salt=12), subject.inputs(4, salt=13).ids
    for parameter in model.parameters():
        parameter.grad = None
    with torch.enable_grad(), without_dropout():
        logits = subject.convention.logits(model, inputs)
        F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()).backward()  # type: ignore[no-untyped-call]
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


def _learns(subject: Subject, names: Iterable[str]) -> bool:
    """Whether, with other weights, a gradient reaches these."""
    gradients = _gradients(subject, twin(subject.model))
    return all((gradient := gradients.get(name)) is not None and bool(gradient.any()) for name in names)
