"""Whether what starts at zero learns."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Subject, finding, model_check
from clearhead.doctor.checks.parts.gradients import gradients_of
from clearhead.doctor.probes.freshness import freshness
from clearhead.doctor.probes.locations import owner_of
from clearhead.doctor.state_guard import twin

STEPS = 3
FAR = 0.1  # of a parameter's size, or at least this much: how far a step goes


@model_check("I04", "births", order=280, needs=STEADY, of_tokens=True)
def births(subject: Subject) -> list[Finding]:
    """A gradient reaches every matrix that starts at zero within a few steps."""
    is_fresh, reason = freshness(subject.fresh, subject.spec.fresh)
    if is_fresh is False:
        raise Skipped(reason)
    zeros = [n for n, p in subject.fresh.named_parameters() if p.dim() > 1 and p.requires_grad and not p.any()]
    if len(zeros) < 2:
        return []
    model = twin(subject.fresh)
    for _ in range(STEPS):
        gradients = _of_targets(subject, model)
        zeros = [name for name in zeros if name not in gradients]
        with torch.no_grad():
            for name, gradient in gradients.items():
                parameter = model.get_parameter(name)
                size = max(float(parameter.abs().max()), FAR)
                parameter.sub_(FAR * size * gradient / gradient.abs().max())
    if len(zeros) < 2 or not {*zeros} <= {*_of_targets(subject, subject.model)}:  # with other weights they learn
        return []
    witness = f"{zeros[0]} and {zeros[1]} are zero, and after {STEPS} steps no gradient has reached either of them"
    return [finding("I04", witness, value=0.0, where=owner_of(subject.fresh, zeros[0]))]


def _of_targets(subject: Subject, model: nn.Module) -> dict[str, Tensor]:
    """The gradients of the cross-entropy of random targets."""
    targets = subject.inputs(4, salt=13).ids.flatten()
    led_to = gradients_of(subject, lambda logits: F.cross_entropy(logits.float().flatten(0, 1), targets), 4, 12, model)
    return {name: gradient for name, gradient in (led_to or {}).items() if gradient.any()}
