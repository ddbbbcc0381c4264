"""Rows of one batch with different padding: each has its own mask, and gradients stay finite."""

from collections.abc import Iterator

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import APART, Finding, Skipped, Subject, finding, model_check
from clearhead.doctor.checks.padding.masks import (
    THRESHOLD,
    Padding,
    PaddingMask,
    PaddingToken,
    first_mask,
    mask_parameters,
)
from clearhead.doctor.checks.padding.padding_tokens import knows_padding
from clearhead.doctor.probes.tensors import change_of

ROWS = 4


@model_check("M15", "padded rows", order=150, covers=("M14",), needs=APART)
def padded_rows(subject: Subject) -> list[Finding]:
    """Padding in one row moves no other row's logits, and leaves gradients finite."""
    if subject.is_hurried:
        raise Skipped("for so large a model this is examined at --level standard")
    masks = (first_mask(subject, name, source) for name, source in mask_parameters(subject))
    paddings: list[Padding] = [*filter(None, masks), *_tokens(subject)]
    if not paddings:
        raise Skipped("it takes no padding mask, and no padding token is known")
    for padding in paddings:
        if findings := other_rows(padding):
            return findings
    for padding in paddings:
        if findings := _gradients(padding):
            return findings
    return []


def _tokens(subject: Subject) -> Iterator[PaddingToken]:
    if subject.pad_id is None or subject.convention.as_dict or not knows_padding(subject):
        return
    if subject.pad_id < subject.calling.vocab_size:
        yield PaddingToken(subject, False, subject.pad_id)
    if subject.convention.has_source and subject.pad_id < subject.calling.source_vocab_size:
        yield PaddingToken(subject, True, subject.pad_id)


def _full(padding: Padding) -> tuple[Inputs, Tensor]:
    """Rows without padding, and their mask."""
    inputs = padding.subject.inputs(ROWS, salt=18)
    keep = torch.ones_like(inputs.tokens(padding.source), dtype=torch.bool)
    return inputs.with_keep(padding.source, keep), keep


def other_rows(padding: Padding) -> list[Finding]:
    """Padding in the first row moves no logit of another."""
    full, keep = _full(padding)
    short = keep.clone()
    short[0, -3:] = False
    before, after = padding.run(full)[1:], padding.run(full.with_keep(padding.source, short))[1:]
    if not before.isfinite().all() or not after.isfinite().all():
        return []
    value = change_of(before, after)
    if value <= THRESHOLD:
        return []
    row = 1 + int((after - before).abs().amax((1, 2)).argmax())
    witness = f"padding at the end of row 0, given by {padding}, moves the logits of row {row} by {value:.1e}"
    return [finding("M15", witness, value=value, threshold=THRESHOLD, where=padding.subject.attention_place)]


def _gradients(padding: Padding) -> list[Finding]:
    """Where padding leaves real logits finite, it leaves gradients finite as well."""
    subject, (inputs, keep) = padding.subject, _full(padding)
    if isinstance(padding, PaddingMask) and not padding.moved <= THRESHOLD:
        return []  # it need not be about padding
    for row in range(1, ROWS):
        keep[row, -row:] = False
        if subject.looks_back_only and not padding.source and isinstance(padding, PaddingMask):
            keep[row, :row] = False  # a causal model does not see what is behind a row anyway
    real = torch.ones_like(inputs.ids, dtype=torch.bool) if padding.source else keep
    parameters = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
    logits = padding.run(inputs.with_keep(padding.source, keep), graph=True)[real]
    if not logits.isfinite().all() or not logits.requires_grad:
        return []
    gradients = torch.autograd.grad(logits.square().sum(), list(parameters.values()), allow_unused=True)
    bad = [name for name, g in zip(parameters, gradients, strict=True) if g is not None and not g.isfinite().all()]
    if not bad:
        return []
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    witness = f"with padding given by {padding}, real logits are finite, but the gradient of {bad[0]}{more} is not"
    return [finding("M14", witness, value=len(bad), where=subject.attention_place)]
