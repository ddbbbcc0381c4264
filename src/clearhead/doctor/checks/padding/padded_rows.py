"""Rows of one batch with different padding: each has its own mask, and gradients stay finite."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import APART, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.checks.padding.masks import PaddingMask, mask_parameters, masks_of, padding_masks
from clearhead.doctor.checks.padding.padding_tokens import knows_padding
from clearhead.doctor.probes.tensors import change_of

ROWS = 4
MOVED = 1e-4  # of the logits' spread


@dataclass(frozen=True)
class PaddingToken:
    """Padding that the model knows by its token: the counterpart of a `PaddingMask`."""

    subject: Subject
    pad: int
    source: bool

    def __str__(self) -> str:
        return f"token {self.pad}{' of the source' if self.source else ''}"

    def run(self, batch: Inputs, *, graph: bool = False) -> Tensor:
        """Logits (B, T, V) with that token where the batch has padding."""
        keep = batch.source_kept if self.source else batch.kept
        filled = batch.tokens(self.source).masked_fill(~keep, self.pad)
        return self.subject.run(batch.with_tokens(self.source, filled), graph=graph)


@model_check("M15", "padded rows", order=150, covers=("M14",), needs=APART)
def padded_rows(subject: Subject) -> list[Finding]:
    """Padding in one row moves no other row's logits, and leaves gradients finite."""
    if subject.is_hurried:
        raise Skipped("for so large a model this is examined at --level standard")
    masks = padding_masks(subject)
    known: list[PaddingMask | PaddingToken] = [*masks, *_tokens(subject)]
    padders = [*known, *_guessed(subject, {mask.names[0] for mask in masks})]
    if not padders:
        raise Skipped("it takes no padding mask, and no padding token is known")
    for padding in padders:
        if findings := _other_rows(subject, padding):
            return findings
    for padding in known:
        if findings := _gradients(subject, padding):
            return findings
    return []


def _tokens(subject: Subject) -> Iterator[PaddingToken]:
    if subject.pad_id is None or subject.convention.as_dict or not knows_padding(subject):
        return
    if subject.pad_id < subject.calling.vocab_size:
        yield PaddingToken(subject, subject.pad_id, False)
    if subject.convention.has_source and subject.pad_id < subject.calling.source_vocab_size:
        yield PaddingToken(subject, subject.pad_id, True)


def _guessed(subject: Subject, known: set[str]) -> Iterator[PaddingMask]:
    """For each mask parameter that hides padding in no known form, the first form that it takes."""
    for name, source in mask_parameters(subject):
        for mask in masks_of(subject, (name,), source) if name not in known else ():
            with attempt() as attempted:
                mask.run(_full(subject, source)[0])
            if not attempted.failed:
                yield mask
                break


def _full(subject: Subject, source: bool) -> tuple[Inputs, Tensor]:
    """Rows without padding, and their mask."""
    inputs = subject.inputs(ROWS, salt=18)
    keep = torch.ones_like(inputs.tokens(source), dtype=torch.bool)
    return inputs.with_keep(source, keep), keep


def _other_rows(subject: Subject, padding: PaddingMask | PaddingToken) -> list[Finding]:
    full, keep = _full(subject, padding.source)
    short = keep.clone()
    short[0, -3:] = False
    before, after = padding.run(full)[1:], padding.run(full.with_keep(padding.source, short))[1:]
    if not before.isfinite().all() or not after.isfinite().all():
        return []
    value = change_of(before, after)
    if value <= MOVED:
        return []
    row = 1 + int((after - before).abs().amax((1, 2)).argmax())
    witness = f"padding at the end of row 0, given by {padding}, moves the logits of row {row} by {value:.1e}"
    return [finding("M15", witness, value=value, threshold=MOVED, where=subject.attention_place)]


def _gradients(subject: Subject, padding: PaddingMask | PaddingToken) -> list[Finding]:
    inputs, keep = _full(subject, padding.source)
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
