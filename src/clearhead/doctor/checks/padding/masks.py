"""The padding masks that a model takes, the forms in which they hide padding, and how far padding moves logits."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import KEEP_FORMS, Inputs, keep_filler, role_of
from clearhead.doctor.calling.names import CACHE, LENGTHS, MASK, PADDING, is_of_source, parameters_of
from clearhead.doctor.checks.padding.padding_tokens import ROWS
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.problems import attempt
from clearhead.doctor.subject import Subject

THRESHOLD = 1e-4  # of the logits' spread: rounding stays far below
ELSEWHERE = re.compile(r"^(encoder|cross|memory)")  # of a source, where there is one
MASK_NAMES = ("mask", "src_mask", "source_mask", "tgt_mask", "trg_mask")


class PaddedBatch(NamedTuple):
    """Two batches that differ only in the tokens under the padding. `keep` (B, T) or (B, S): True for real tokens."""

    before: Inputs
    after: Inputs
    keep: Tensor


@dataclass(frozen=True)
class PaddingMask:
    """A padding mask in one form, of the source or the target, given as one parameter of `forward` or as several."""

    subject: Subject
    names: tuple[str, ...]
    form: str
    source: bool

    def __str__(self) -> str:
        return f"{' and '.join(self.names)} ({self.form})"

    @property
    def keeps_what_is_one(self) -> bool:
        """Whether True or 1 means a real token."""
        return "keep" in self.form or self.form == "lengths"

    def run(self, batch: Inputs, more: Mapping[str, object] | None = None, *, graph: bool = False) -> Tensor:
        """Logits (B, T, V) under the mask; see `Subject.run`."""
        value = keep_filler(self.form, self.source)(batch, self.subject.convention.time_first)
        return self.subject.run(batch, {**dict.fromkeys(self.names, value), **(more or {})}, graph=graph)

    def move(self) -> float:
        """How far the logits of real tokens move when the tokens under the padding change, relative to their spread.

        Raises:
            FloatingPointError: logits of real tokens are not finite.
        """
        before, after, keep = padded_batch(self.subject, self.source)
        real = torch.ones_like(before.ids, dtype=torch.bool) if self.source else keep
        logits = [self.run(batch)[real] for batch in (before, after)]
        if not all(values.isfinite().all() for values in logits):
            raise FloatingPointError
        return change_of(*logits)

    @property
    def moved(self) -> float:
        """The same, computed once: several checks need it."""
        known, key = self.subject.moved_under_masks, (self.names, self.form, self.source)
        if key not in known:
            known[key] = self.move()
        return known[key]


def padding_masks(subject: Subject) -> list[PaddingMask]:
    """A mask for each parameter that takes one in a form under which padding has no effect."""
    masks = (hiding_mask(subject, (name,), source) for name, source in mask_parameters(subject))
    return [mask for mask in masks if mask is not None]


def hiding_mask(subject: Subject, names: tuple[str, ...], source: bool) -> PaddingMask | None:
    """The mask in the first form under which, given as these parameters, padding has no effect."""
    for mask in masks_of(subject, names, source):
        with attempt():  # the parameter may take a mask of another form
            if mask.moved <= THRESHOLD:
                return mask
    return None


def masks_of(subject: Subject, names: tuple[str, ...], source: bool) -> Iterator[PaddingMask]:
    """The mask in every form that its name allows; one that is named after lengths holds lengths."""
    for form in ("lengths",) if LENGTHS.search(names[0]) else KEEP_FORMS:
        yield PaddingMask(subject, names, form, source)


def mask_parameters(subject: Subject) -> list[tuple[str, bool]]:
    """Parameters that seem to take a padding mask, and whether it is the source's."""
    convention, call = subject.convention, dict(subject.convention.call)
    if convention.as_dict:
        names = convention.requested(subject.model, subject.inputs())
        roles = {"source": "source", "target": "ids"} if convention.has_source else {"ids": "ids"}
        return [(name, is_of_source(name, roles)) for name in names if MASK.search(name) or "pad" in name]
    roles = {name: role for name, filler in call.items() if (role := role_of(filler)) in ("ids", "source")}
    return [
        (p.name, is_of_source(p.name, roles))
        for p in parameters_of(subject.model)
        if MASK.search(p.name)
        and not CACHE.search(p.name)
        and not isinstance(p.default, (int, float, str))  # a number of tokens, or a switch
        and not (ELSEWHERE.search(p.name) and not convention.has_source)
        and "causal" not in call.get(p.name, "")
        and (PADDING.search(p.name) or p.name in MASK_NAMES or "keep" in call.get(p.name, ""))
    ]


def padded_batch(subject: Subject, source: bool) -> PaddedBatch:
    """Rows with padding where it would be seen: in front for a model that only looks back, else at the end."""
    inputs, other = subject.inputs(ROWS, salt=5), subject.inputs(ROWS, salt=6)
    tokens = inputs.tokens(source)
    keep = torch.ones_like(tokens, dtype=torch.bool)
    n = tokens.shape[1]
    for row, padding in enumerate((max(1, n // 4), max(1, n // 3))):
        keep[row, slice(-padding, None) if source or not subject.looks_back_only else slice(padding)] = False
    before = inputs.with_keep(source, keep)
    return PaddedBatch(before, before.with_tokens(source, torch.where(keep, tokens, other.tokens(source))), keep)
