"""Rows of one batch with unlike padding: each has a mask of its own, and gradients stay finite."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import BASE, Skipped, finding, model_check
from clearhead.doctor.checks.locations import attention_place
from clearhead.doctor.checks.padding.masks import forms_of, mask_parameters, masked_run, padding_masks
from clearhead.doctor.checks.padding.padding_tokens import knows_padding
from clearhead.doctor.probes.dependency import change_of
from clearhead.doctor.probes.tracing import without_dropout
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

ROWS = 4
MOVED = 1e-4  # of the logits' spread


@dataclass(frozen=True)
class PaddedRun:
    """One way to tell a model of padding: `run` gives logits (B, T, V) where `keep` is True for real tokens."""

    name: str
    of_source: bool
    run: Callable[[Inputs, Tensor], Tensor]
    by_token: bool = False


@model_check(
    "M15",
    "padded rows",
    order=150,
    covers=("M15", "M14"),
    holds="padding in one row moves no other row, and leaves gradients finite",
    needs=(*BASE, "layouts", "norms"),
)
def padded_rows(subject: Subject) -> list[Finding]:
    """Padding in one row moves no other row, and the logits of real tokens have a gradient."""
    if subject.is_hurried:
        raise Skipped("so large a model is examined for it at --level standard")
    right = list(_right(subject))
    runs = [*right, *_guessed(subject, {padded.name.partition(" ")[0] for padded in right})]
    if not runs:
        raise Skipped("no way to tell it of padding is known")
    for padded in runs:
        findings = _other_rows(subject, padded)
        if findings:
            return findings
    for padded in right:
        findings = _gradients(subject, padded)
        if findings:
            return findings
    return []


def _right(subject: Subject) -> Iterator[PaddedRun]:
    """Ways that the model is known to understand."""
    for name, form, source in padding_masks(subject):
        yield _masked(subject, name, form, source)
    if subject.pad_id is None or subject.convention.as_dict or not knows_padding(subject):
        return
    for source in (False, True) if subject.convention.has_source else (False,):
        size = subject.calling.source_vocab_size if source else subject.calling.vocab_size
        if subject.pad_id < size:
            yield _filled(subject, subject.pad_id, source)


def _guessed(subject: Subject, known: set[str]) -> Iterator[PaddedRun]:
    """For each mask parameter of which no right form is known, the first that it takes."""
    for name, source in mask_parameters(subject):
        for form in forms_of(name):
            padded = _masked(subject, name, form, source)
            if name not in known and _is_taken(subject, padded):
                yield padded
                break


def _is_taken(subject: Subject, padded: PaddedRun) -> bool:
    with attempt() as attempted, subject.quiet():
        padded.run(*_batch(subject, padded))
    return not attempted.failed


def _masked(subject: Subject, name: str, form: str, source: bool) -> PaddedRun:
    run = masked_run(subject, (name,), form, source)
    return PaddedRun(f"{name} ({form})", source, lambda inputs, keep: run(inputs.with_keep(source, keep)))


def _filled(subject: Subject, pad: int, source: bool) -> PaddedRun:
    def run(inputs: Inputs, keep: Tensor) -> Tensor:
        return subject.run(inputs.with_tokens(source, inputs.tokens(source).masked_fill(~keep, pad)))

    return PaddedRun(f"token {pad}{' of the source' if source else ''}", source, run, by_token=True)


def _batch(subject: Subject, padded: PaddedRun) -> tuple[Inputs, Tensor]:
    """Rows that are full, and their mask."""
    inputs = subject.inputs(ROWS, salt=18)
    return inputs, torch.ones_like(inputs.tokens(padded.of_source), dtype=torch.bool)


def _other_rows(subject: Subject, padded: PaddedRun) -> list[Finding]:
    inputs, full = _batch(subject, padded)
    short = full.clone()
    short[0, -3:] = False
    with subject.quiet():
        before, after = padded.run(inputs, full)[1:], padded.run(inputs, short)[1:]
    if not before.isfinite().all() or not after.isfinite().all():
        return []
    value = change_of(before, after)
    if value <= MOVED:
        return []
    row = 1 + int((after - before).abs().amax((1, 2)).argmax())
    witness = f"padding at the end of row 0, told by {padded.name}, moves the logits of row {row} by {value:.1e}"
    return [finding("M15", witness, value=value, threshold=MOVED, where=attention_place(subject))]


def _gradients(subject: Subject, padded: PaddedRun) -> list[Finding]:
    inputs, keep = _batch(subject, padded)
    for row in range(1, ROWS):
        keep[row, -row:] = False
        if subject.looks_back_only and not padded.of_source and not padded.by_token:
            keep[row, :row] = False  # a causal model does not see what is behind a row anyway
    real = torch.ones_like(inputs.ids, dtype=torch.bool) if padded.of_source else keep
    parameters = {name: p for name, p in subject.model.named_parameters() if p.requires_grad}
    with torch.enable_grad(), without_dropout():
        logits = padded.run(inputs, keep)[real]
        if not logits.isfinite().all() or not logits.requires_grad:
            return []
        gradients = torch.autograd.grad(logits.square().sum(), list(parameters.values()), allow_unused=True)
    bad = [name for name, g in zip(parameters, gradients, strict=True) if g is not None and not g.isfinite().all()]
    if not bad:
        return []
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    witness = (
        f"with padding told by {padded.name} logits of real tokens are finite; their gradient in {bad[0]}{more} is not"
    )
    return [finding("M14", witness, value=len(bad), where=attention_place(subject))]
