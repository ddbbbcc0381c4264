"""Padding that a model knows by its token, where no mask is given."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from clearhead.doctor.calling.names import PAD_NAMES, TARGET, parameters_of
from clearhead.doctor.checks.base import Finding, Skipped, Subject, finding
from clearhead.doctor.checks.padding.amounts import MORE, amounts, beside_padding
from clearhead.doctor.checks.padding.masks import ROWS, PaddingToken, padded_batch
from clearhead.doctor.probes.attention import attentions


def by_token(subject: Subject, *, source: bool) -> list[Finding]:
    """Where padding is a token: three of them after a row must not move the logits of the tokens before them."""
    if not knows_padding(subject, source=source):
        raise Skipped("nothing in the model mentions padding")
    padding = _token(subject, source=source)
    subject.journal.paths.append(f"{'the source' if source else 'a row'} padded with token {padding.pad}")
    return amounts(padding)


def _token(subject: Subject, *, source: bool) -> PaddingToken:
    assert subject.pad_id is not None
    return PaddingToken(subject, source, subject.pad_id)


def where_not_given(subject: Subject, masks: Sequence[tuple[str, bool]], safe: Collection[bool]) -> list[Finding]:
    """Masks that the model makes from the tokens if none is given: what one attention hides, no other may see.

    Args:
        safe: the sides, source (True) or target, on which a mask hides all padding if it is given: findings there are
            only warnings.
    """
    findings: list[Finding] = []
    optional = {p.name for p in parameters_of(subject.model) if p.default is None}
    optional -= {name for name, _ in subject.convention.call}
    for source in {of_source for _, of_source in masks}:
        names = {name for name, of_source in masks if of_source == source}
        if not (names <= optional and knows_padding(subject, source=source)):
            continue
        if (source or not subject.looks_back_only) and _hides_padding(subject, source=source):
            faults = by_token(subject, source=source)
            findings += [replace(fault, status="warn") for fault in faults] if source in safe else faults
    return findings


def _hides_padding(subject: Subject, *, source: bool) -> bool:
    """Whether any attention hides the padding among its keys."""
    _, padded = beside_padding(subject, source)
    n = padded.tokens(source).shape[1]
    operations = _token(subject, source=source).operations(padded.rows(torch.arange(ROWS - 1)))
    keys = (attention.allowed.any(0) for attention in attentions(operations) if attention.allowed.shape[1] == n)
    return any(bool(shown[:-MORE].any()) and not bool(shown[-MORE:].any()) for shown in keys)


def in_front(subject: Subject) -> list[Finding]:
    """Padding in front of a row leaves its first queries nothing to look at, which must not make NaN of later ones."""
    padding, (batch, _, keep) = _token(subject, source=False), padded_batch(subject, source=False)
    if padding.run(batch)[keep].isfinite().all():
        return []
    witness = f"with padding (token {padding.pad}) in front, the logits of the real tokens are NaN"
    return [finding((("M14", 0.9), ("M12", 0.1)), witness, where=padding.first_nan(batch))]


def knows_padding(subject: Subject, *, source: bool = False) -> bool:
    """Whether the model has a padding token, declared or compared with its inputs. The target's is not the source's."""
    names = [name for name in PAD_NAMES if not (source and TARGET.search(name))]
    is_declared = subject.spec.pad_id is not None or any(hasattr(subject.original, name) for name in names)
    return is_declared or subject.compared_id is not None
