"""A matrix of several parts, as of queries, keys and values: the gradient reaches each part that has an effect."""

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.checks.parts.effects import NUDGE
from clearhead.doctor.probes.locations import owner_of
from clearhead.doctor.probes.tracing import without_dropout
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

SHARE = 1 / 8  # of a matrix: fewer rows without a gradient may be units that sleep on these tokens
HEARD = 0.1  # of what as small a change of the other rows does: units that sleep do not wake from it


@model_check(
    "I06",
    "slices",
    order=270,
    covers=("I06",),
    holds="every part of a fused matrix has a gradient",
    needs=("finite", "deterministic", "gradients"),
)
def slices(subject: Subject) -> list[Finding]:
    """Rows of a matrix that a gradient leaves out, beside rows that it reaches, have no effect either."""
    if subject.is_large:
        raise Skipped("so large a model is examined for whole parameters only")
    tables = {id(module.weight) for module in subject.model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter, gradient in _gradients(subject):
        if id(parameter) in tables or parameter.dim() < 2:
            continue
        for axis in range(2):
            missed = ~gradient.movedim(axis, 0).flatten(1).any(1)  # (rows,)
            if not SHARE <= float(missed.float().mean()) < 1:
                continue
            deaf, heard = (_moved(subject, parameter, axis, rows) for rows in (missed, ~missed))
            if deaf > HEARD * heard > 0:
                kind = "rows" if axis == 0 else "columns"
                index = int(missed.nonzero()[0])
                witness = (
                    f"other values in {int(missed.sum())} of {len(missed)} {kind} of {name}, from {index} on, move the "
                    "logits, and no gradient reaches them"
                )
                return [finding("I06", witness, value=0.0, where=owner_of(subject.model, name, own_code=True))]
    return []


def _gradients(subject: Subject) -> list[tuple[str, nn.Parameter, Tensor]]:
    named = [(name, p) for name, p in subject.model.named_parameters() if p.requires_grad]
    with torch.enable_grad(), without_dropout():
        logits = subject.convention.logits(subject.model, subject.inputs(3))
        if not logits.requires_grad:
            return []
        weights = torch.randn(logits.shape, generator=subject.generator(26)).to(logits)
        gradients = torch.autograd.grad((weights * logits).sum(), [p for _, p in named], allow_unused=True)
    return [(name, p, g) for (name, p), g in zip(named, gradients, strict=True) if g is not None]


def _moved(subject: Subject, parameter: nn.Parameter, axis: int, rows: Tensor) -> float:
    """How far the logits move if these rows are a little different."""
    kept = parameter.detach().clone()
    noise = torch.randn(parameter.shape, generator=subject.generator(27)).to(parameter)
    inputs = subject.inputs(3)
    with torch.no_grad(), subject.quiet():
        before = subject.run(inputs)
        try:
            parameter.movedim(axis, 0)[rows] += NUDGE * noise.movedim(axis, 0)[rows]
            return float((subject.run(inputs) - before).abs().max())
        finally:
            parameter.copy_(kept)
