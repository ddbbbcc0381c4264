"""Rows of one batch with different padding: each has its own mask, and gradients stay finite."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import WHOLE_FORMS, Inputs
from clearhead.doctor.checks.base import APART, Finding, Skipped, Subject, finding, model_check
from clearhead.doctor.checks.padding.amounts import told_side
from clearhead.doctor.checks.padding.masks import (
    THRESHOLD,
    Padding,
    PaddingMask,
    first_mask,
    mask_parameters,
    padding_tokens,
)
from clearhead.doctor.probes.tensors import change_of

ROWS = 4
OF_ROWS = {f"causal: {form}" for form in WHOLE_FORMS}


@dataclass(frozen=True)
class GivenMask(Padding):
    """A mask of the future that the model is given anyway, for each row its own."""

    name: str

    def __str__(self) -> str:
        return self.name

    def run(self, batch: Inputs, more: Mapping[str, object] | None = None, *, graph: bool = False) -> Tensor:
        """Logits (B, T, V) under a mask that hides the batch's padding as well."""
        return self.subject.run(batch, more, graph=graph)


@model_check("M15", "padded rows", order=150, covers=("M14",), needs=APART)
def padded_rows(subject: Subject) -> list[Finding]:
    """Padding in one row moves no other row's logits, and leaves gradients finite."""
    if subject.is_hurried:
        raise Skipped("for so large a model this is examined at --level standard")
    masks = (first_mask(subject, name, source) for name, source in mask_parameters(subject))
    paddings: list[Padding] = [*filter(None, masks), *padding_tokens(subject)]
    paddings += [GivenMask(subject, False, name) for name, filler in subject.convention.call if filler in OF_ROWS]
    if not paddings:
        raise Skipped("it takes no padding mask, and no padding token is known")
    findings = (examine(padding) for examine in (other_rows, _gradients) for padding in paddings)
    return next(filter(None, findings), [])


def other_rows(padding: Padding) -> list[Finding]:
    """Padding in the first row moves no logit of another."""
    full = padding.subject.inputs(ROWS, salt=18)
    before, after = (padding.run(full.padded(padding.source, counts))[1:] for counts in ((), (3,)))
    value = change_of(before, after)
    if not math.isfinite(value) or value <= THRESHOLD:
        return []
    row = 1 + int((after - before).abs().amax((1, 2)).argmax())
    witness = f"padding at the end of row 0, given by {padding}, moves the logits of row {row} by {value:.1e}"
    return [finding("M15", witness, value=value, threshold=THRESHOLD, where=padding.subject.attention_place)]


def _gradients(padding: Padding) -> list[Finding]:
    """Where padding leaves real logits finite, it leaves gradients finite as well."""
    subject, is_mask = padding.subject, isinstance(padding, PaddingMask)
    if isinstance(padding, PaddingMask) and not padding.moved <= THRESHOLD:
        return []  # it need not be about padding
    is_in_front = is_mask and padding.is_future
    batch = subject.inputs(ROWS, salt=18).padded(padding.source, range(ROWS), front=is_in_front)
    parameters = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
    logits = padding.run(batch, graph=True)[batch.kept()]
    if not logits.isfinite().all() or not logits.requires_grad:
        return []
    gradients = torch.autograd.grad(logits.square().sum(), list(parameters.values()), allow_unused=True)
    bad = [name for name, g in zip(parameters, gradients, strict=True) if g is not None and not g.isfinite().all()]
    if not bad:
        return []
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    witness = f"with padding given by {padding}, real logits are finite, but the gradient of {bad[0]}{more} is not"
    second = told_side(padding, "front" if is_in_front else "behind")
    return [finding("M14", witness, value=len(bad), where=subject.attention_place, second=second)]
