"""Padding that a model knows by its token, where no mask is given."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from clearhead.doctor.calling.names import parameters_of
from clearhead.doctor.checks.base import Finding, Subject, finding
from clearhead.doctor.checks.padding.amounts import MORE, amounts, beside_padding
from clearhead.doctor.checks.padding.masks import ROWS, PaddingToken, padding_masks, padding_tokens
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.spec import Assumption


def by_token(padding: PaddingToken) -> list[Finding]:
    """Three of them must not matter where they would be seen: behind a row, or else in front of it."""
    subject = padding.subject
    origin, _ = subject.padding(source=padding.source)
    if origin != "you":
        subject.journal.assumptions.append(Assumption("padding", str(padding), (f"{origin} says so",)))
    subject.journal.paths.append(f"padded with {padding}")
    if not padding.is_future:
        return amounts(padding)
    return [] if subject.convention.has_source else _in_front(padding)  # a target is padded at its end


def where_not_given(subject: Subject, masks: Sequence[tuple[str, bool]]) -> list[Finding]:
    """Masks that the model makes from the tokens if none is given: what one attention hides, no other may see.

    On a side, source or target, where a mask hides all padding if it is given, findings are only warnings.
    """
    findings: list[Finding] = []
    optional = {p.name for p in parameters_of(subject.model) if p.default is None}
    optional -= {name for name, _ in subject.convention.call}
    safe = {mask.source for mask in padding_masks(subject)}
    for padding in padding_tokens(subject):
        names = {name for name, of_source in masks if of_source == padding.source}
        if names and names <= optional and not padding.is_future and _hides_padding(padding):
            faults = by_token(padding)
            findings += [replace(fault, status="warn") for fault in faults] if padding.source in safe else faults
    return findings


def _hides_padding(padding: PaddingToken) -> bool:
    """Whether any attention hides the padding among its keys."""
    _, padded = beside_padding(padding)
    n = padded.tokens(padding.source).shape[1]
    operations = padding.operations(padded.rows(torch.arange(ROWS - 1)))
    keys = (attention.allowed.any(0) for attention in attentions(operations) if attention.allowed.shape[1] == n)
    return any(bool(shown[:-MORE].any()) and not bool(shown[-MORE:].any()) for shown in keys)


def _in_front(padding: PaddingToken) -> list[Finding]:
    """Padding in front of a row leaves its first queries nothing to look at, which must not make NaN of later ones."""
    batch, _ = padding.under_padding()
    if padding.run(batch)[batch.kept()].isfinite().all():
        return []
    witness = f"with padding (token {padding.pad}) in front, the logits of the real tokens are NaN"
    return [finding((("M14", 0.9), ("M12", 0.1)), witness, where=padding.first_nan(batch))]
