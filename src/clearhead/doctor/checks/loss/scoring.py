"""A model that computes its own loss, called with labels, and what that loss asks of its logits."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.borrow import twin
from clearhead.doctor.checks.base import Skipped
from clearhead.doctor.conventions.outputs import arrange, find_logits, follow, leaves
from clearhead.doctor.instruments.flow import made_by
from clearhead.doctor.instruments.loss import Xray, read, undone
from clearhead.doctor.instruments.tracing import Call, recorded_modules, recorded_ops
from clearhead.doctor.patient import Patient

LOUD = 6.0  # spread of logits above which a softmax is all but one token, and shows no line
ALIKE = 1e-4  # of the logits' spread: they are the same but for rounding


@dataclass(frozen=True)
class Scored:
    """One call with labels: its loss and logits with their graph, and the modules that were called."""

    loss: Tensor
    logits: Tensor
    labels: Tensor
    calls: list[Call]


def quieter(patient: Patient) -> nn.Module:
    """The shaken copy, or a fainter one of the same make whose logits are close enough to each other to be read."""
    inputs = patient.inputs(3, salt=9)
    with torch.no_grad():
        if float(patient.run(inputs).std()) < LOUD:
            return patient.model
        model = twin(patient.fresh)
        for _ in range(8):
            if float(patient.run(inputs, model=model).std()) < LOUD / 3:
                break
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(0.5)
    return model


def scored(patient: Patient, model: nn.Module, name: str, labels: Tensor) -> Scored:
    """The loss for these labels, and the logits that it is made of.

    Raises:
        Skipped: it returns no loss, or its logits are not to be found.
    """
    inputs = patient.inputs(3, salt=9)
    given = {name: labels.t() if patient.convention.time_first else labels}
    with torch.enable_grad(), recorded_modules(model) as calls:
        value = patient.convention.raw(model, inputs, **given)
    loss = _loss_in(value)
    path = find_logits(value, len(inputs.ids), patient.found.T, patient.found.vocab_size)
    logits = None if path is None else follow(value, path)
    if loss is not None and isinstance(logits, Tensor) and logits.requires_grad:
        if _is_as_without_labels(patient, model, logits, labels.shape):
            return Scored(loss, logits, labels, calls)
    elif loss is None:
        raise Skipped("it returned no loss")
    hidden = _hidden(patient, model, given, labels.shape)
    if hidden is not None:  # it returns none, or in another order
        return Scored(*hidden, labels, calls)
    if not isinstance(logits, Tensor) or not logits.requires_grad:
        raise Skipped("it returned no loss beside its logits")
    return Scored(loss, logits, labels, calls)


def _loss_in(value: Any) -> Tensor | None:
    numbers = (leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor) and leaf.dim() == 0)
    return next((leaf for leaf in numbers if leaf.requires_grad), None)


def _is_as_without_labels(patient: Patient, model: nn.Module, logits: Tensor, shape: torch.Size) -> bool:
    there = arrange(logits.detach().cpu(), *shape)
    return there is not None and _alike(there, _without_labels(patient, model))


def _without_labels(patient: Patient, model: nn.Module) -> Tensor:
    with torch.no_grad():
        return patient.run(patient.inputs(3, salt=9), model=model)


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and float((one - other).abs().max()) <= ALIKE * float(other.std())


def _hidden(
    patient: Patient, model: nn.Module, given: dict[str, Tensor], shape: torch.Size
) -> tuple[Tensor, Tensor] | None:
    """The loss and, of what was computed for it, the first tensor that holds the logits of a call without labels."""
    expected = _without_labels(patient, model)
    with torch.enable_grad(), recorded_ops() as ops:
        loss = _loss_in(patient.convention.raw(model, patient.inputs(3, salt=9), **given))
    for call in ops.calls:
        for tensor in made_by(call):
            there = arrange(tensor.detach().cpu(), *shape) if tensor.requires_grad else None
            if there is not None and loss is not None and _alike(there, expected):
                return loss, tensor
    return None


def xrayed(scored: Scored) -> tuple[Xray, Tensor]:
    """What is asked for, and of which logits (B, T, V)."""
    try:
        (gradient,) = torch.autograd.grad(scored.loss, scored.logits)
    except RuntimeError:
        raise Skipped("its loss is not made from the logits that it returns") from None
    there, slope = (arrange(t.detach().cpu(), *scored.labels.shape) for t in (scored.logits, gradient))
    if there is None or slope is None:
        raise Skipped("its logits change their shape when it is given targets")
    logits, slope = undone(there.double(), slope.double())
    return read(slope, logits, scored.labels, float(scored.loss.detach())), logits
