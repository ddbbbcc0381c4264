"""A loss that a model makes of nothing but its inputs."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import Skipped
from clearhead.doctor.checks.loss.losses import ALIGNED, end_ids, labels_parameter
from clearhead.doctor.checks.loss.scoring import loss_in, quieter, with_slope
from clearhead.doctor.checks.loss.verdicts import judge
from clearhead.doctor.checks.padding.padding_tokens import knows_padding
from clearhead.doctor.conventions.inputs import Inputs
from clearhead.doctor.conventions.outputs import find_logits, follow
from clearhead.doctor.instruments.loss import STRAIGHT, Xray, read, undone
from clearhead.doctor.instruments.places import place_of_module
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding

NONE = "it makes no loss of what it reads"


def losses_of_inputs(patient: Patient) -> list[Finding]:
    """A model that makes inputs and targets of one row is asked for the next token of each, and not for padding."""
    if not patient.looks_back_only or patient.shifts_its_rows or labels_parameter(patient) is not None:
        raise Skipped(NONE)
    pad = patient.pad_id if knows_padding(patient) else None
    inputs = patient.inputs(3, salt=9)
    if pad is not None:
        ids = inputs.ids.clone()
        ids[2, patient.found.T // 2 :] = pad  # two rows are full, one is half
        inputs = replace(inputs, ids=ids, labels=ids, keep=ids != pad)
    seen, logits = _xrayed(patient, quieter(patient).model, inputs)
    if seen.residual > STRAIGHT:
        return []
    where = place_of_module("", patient.model)
    ends = pad is not None and pad in end_ids(patient)
    found = judge(seen, inputs.ids, logits, pad_id=pad, shifts=True, ends=ends)
    return [replace(fault, where=where) for fault in found if fault.id in (*ALIGNED, "D05")]


def _xrayed(patient: Patient, model: nn.Module, inputs: Inputs) -> tuple[Xray, Tensor]:
    """What is asked for, and of which logits (B, T, V).

    Raises:
        Skipped: it makes no loss, or none of the logits that it returns.
    """
    B, T = inputs.ids.shape
    with torch.enable_grad():
        value = patient.convention.raw(model, inputs)
    path = find_logits(value, B, T, patient.found.vocab_size)
    loss, logits = loss_in(value), None if path is None else follow(value, path)
    if loss is None or not isinstance(logits, Tensor) or not logits.requires_grad:
        raise Skipped(NONE)
    there, slope = with_slope(loss, logits, inputs.ids.shape)
    if patient.convention.drops_last:
        slope[:, -1] = 0  # it was given one token more than the row has, and asks for that
    there, slope = undone(there, slope)
    return read(slope, there, inputs.ids, float(loss.detach())), there
