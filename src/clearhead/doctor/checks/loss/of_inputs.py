"""A loss that a model makes of nothing but its inputs."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.outputs import find_logits, follow
from clearhead.doctor.checks.base import Skipped, model_check
from clearhead.doctor.checks.loss.judge import judge
from clearhead.doctor.checks.loss.losses import ALIGNED, TARGET_FAULTS, end_ids, labels_parameter
from clearhead.doctor.checks.loss.scoring import loss_in, quieter, with_slope
from clearhead.doctor.checks.padding.padding_tokens import knows_padding
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.loss import STRAIGHT, Xray, read, undone
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

NONE = "it makes no loss of what it reads"


@model_check(
    "D02",
    "losses of inputs",
    order=240,
    covers=TARGET_FAULTS,
    holds="a loss that is made of the inputs alone asks for the right targets",
    needs=("finite", "deterministic"),
    of_tokens=True,
)
def losses_of_inputs(subject: Subject) -> list[Finding]:
    """A model that makes inputs and targets of one row is asked for the next token of each, and not for padding."""
    if not subject.looks_back_only or subject.shifts_its_rows or labels_parameter(subject) is not None:
        raise Skipped(NONE)
    pad = subject.pad_id if knows_padding(subject) else None
    inputs = subject.inputs(3, salt=9)
    if pad is not None:
        ids = inputs.ids.clone()
        ids[2, subject.calling.T // 2 :] = pad  # two rows are full, one is half
        inputs = replace(inputs, ids=ids, labels=ids, keep=ids != pad)
    reading, logits = _xrayed(subject, quieter(subject).model, inputs)
    if reading.residual > STRAIGHT:
        return []
    where = place_of_module("", subject.model)
    ends = pad is not None and pad in end_ids(subject)
    findings = judge(reading, inputs.ids, logits, pad_id=pad, shifts=True, ends=ends)
    return [replace(fault, where=where) for fault in findings if fault.id in (*ALIGNED, "D05")]


def _xrayed(subject: Subject, model: nn.Module, inputs: Inputs) -> tuple[Xray, Tensor]:
    """What is asked for, and of which logits (B, T, V).

    Raises:
        Skipped: it makes no loss, or none of the logits that it returns.
    """
    B, T = inputs.ids.shape
    with torch.enable_grad():
        value = subject.convention.raw(model, inputs)
    path = find_logits(value, B, T, subject.calling.vocab_size)
    loss, logits = loss_in(value), None if path is None else follow(value, path)
    if loss is None or not isinstance(logits, Tensor) or not logits.requires_grad:
        raise Skipped(NONE)
    there, slope = with_slope(loss, logits, inputs.ids.shape)
    if subject.convention.drops_last:
        slope[:, -1] = 0  # it was given one token more than the row has, and asks for that
    there, slope = undone(there, slope)
    return read(slope, there, inputs.ids, float(loss.detach())), there
