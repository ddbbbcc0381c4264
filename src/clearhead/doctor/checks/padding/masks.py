"""The ways in which a model learns of padding: the masks that it takes, in all their forms, and its padding token."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import CAUSAL_FORMS, KEEP_FORMS, WHOLE_FORMS, Inputs, role_of
from clearhead.doctor.calling.names import (
    CACHE,
    LENGTHS,
    MASK,
    PADDING,
    POSITIONS,
    is_of_a_library,
    is_of_source,
    parameters_of,
)
from clearhead.doctor.checks.base import Subject, Where, attempt
from clearhead.doctor.checks.basics import first_nan
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops

THRESHOLD = 1e-4  # of the logits' spread: rounding stays far below
LENGTH_THRESHOLD = 1e-3  # of the logits' spread, where shapes differ, and with them the order of sums
ROWS = 3
ELSEWHERE = re.compile(r"^(encoder|cross|memory)")  # of a source, where there is one
MASK_NAMES = ("mask", "src_mask", "source_mask", "tgt_mask", "trg_mask")


@dataclass(frozen=True)
class Padding:
    """A way in which a model learns which tokens of its rows, or of their source, are padding."""

    subject: Subject
    source: bool

    @property
    def is_future(self) -> bool:
        """Whether padding behind a row is never seen."""
        return self.subject.looks_back_only and not self.source

    def run(self, batch: Inputs, more: Mapping[str, object] | None = None, *, graph: bool = False) -> Tensor:
        """Logits (B, T, V) where the model learns of the batch's padding; see `Subject.run`."""
        raise NotImplementedError

    def under_padding(self, *, after_first: bool = False) -> tuple[Inputs, Inputs]:
        """Two batches that differ only under the padding, which is where it would be seen: in front, if not behind.

        Args:
            after_first: the first token is real, so that every query has a key.
        """
        inputs, other = (self.subject.inputs(ROWS, salt=salt) for salt in (5, 6))
        tokens = inputs.tokens(self.source)
        n = tokens.shape[1]
        before = inputs.padded(self.source, (max(1, n // 4), max(1, n // 3)), front=self.is_future)
        before.kept(self.source)[:, 0] |= after_first
        after = torch.where(before.kept(self.source), tokens, other.tokens(self.source))
        return before, before.with_tokens(self.source, after)

    def operations(self, batch: Inputs) -> list[ModuleCall]:
        """Every operation of that call."""
        with recorded_ops() as ops:
            self.run(batch)
        return ops.calls

    def first_nan(self, batch: Inputs) -> Where:
        """The module that makes NaN from numbers in that call; else the first attention."""
        with recorded_modules(self.subject.model) as calls:
            self.run(batch)
        where = first_nan(calls)
        return self.subject.attention_place if where == Where() else where


@dataclass(frozen=True)
class PaddingMask(Padding):
    """A mask in one form, given as one parameter of `forward` or as several."""

    names: tuple[str, ...]
    form: str

    def __str__(self) -> str:
        return f"{' and '.join(self.names)} ({self.form})"

    @property
    def keeps_what_is_one(self) -> bool:
        """Whether True or 1 means a real token."""
        return "keep" in self.form or "sees" in self.form or self.form == "lengths"

    def run(self, batch: Inputs, more: Mapping[str, object] | None = None, *, graph: bool = False) -> Tensor:
        """Logits (B, T, V) under the mask."""
        return self.subject.run(batch, {**self.arguments(batch), **(more or {})}, graph=graph)

    def arguments(self, batch: Inputs) -> dict[str, object]:
        """What `forward` is given."""
        is_whole = self.form in CAUSAL_FORMS
        mask = CAUSAL_FORMS[self.form](batch) if is_whole else KEEP_FORMS[self.form](batch.kept(self.source))
        return dict.fromkeys(self.names, mask)

    def move(self, *, after_first: bool = False) -> float:
        """How far the logits of real tokens move when the tokens under the padding change, relative to their spread.

        NaN if they are not finite. Of several inputs, a mask need hide one.
        """
        pair = self.under_padding(after_first=after_first)
        held, kept = self.subject.convention.held(pair[0]), pair[0].kept()
        if len(held) > 1:
            held = [
                others
                for others in held
                if change_of(*(self.subject.run(b.unpadded, others) for b in pair)) > THRESHOLD
            ]
        values = [change_of(*(self.run(batch, others)[kept] for batch in pair)) for others in held]
        return min(values, default=0.0) if all(map(math.isfinite, values)) else math.nan

    @property
    def moved(self) -> float:
        """The same, computed once for all checks; infinite if the parameters take no mask of this form."""
        known, key = self.subject.moved_under_masks, (self.names, self.form, self.source)
        if key not in known:
            known[key] = math.inf
            with attempt():
                known[key] = self.move()
        return known[key]

    @property
    def is_neutral(self) -> bool:
        """Whether it is as good as no mask where it hides nothing, if the model takes none as well."""
        subject, optional = self.subject, {p.name for p in parameters_of(self.subject.model) if p.default is None}
        if subject.gives_rows or not {*self.names} <= optional - {*dict(subject.convention.call)}:
            return True  # without a mask, rows may be pooled in another way
        inputs = subject.inputs(ROWS, salt=5)
        return change_of(subject.run(inputs), self.run(inputs)) <= LENGTH_THRESHOLD

    @property
    def is_read(self) -> bool:
        """Whether it moves logits; only then is it told of a model that returns its loss, which alone may read it."""
        before = self.under_padding()[0]
        return not self.subject.convention.inner or change_of(self.run(before), self.run(before.unpadded)) != 0


@dataclass(frozen=True)
class PaddingToken(Padding):
    """A token that stands for padding."""

    pad: int

    def __str__(self) -> str:
        return f"token {self.pad}{' of the source' if self.source else ''}"

    def run(self, batch: Inputs, more: Mapping[str, object] | None = None, *, graph: bool = False) -> Tensor:
        """Logits (B, T, V) with that token where the batch has padding."""
        filled = batch.tokens(self.source).masked_fill(~batch.kept(self.source), self.pad)
        return self.subject.run(batch.with_tokens(self.source, filled), more, graph=graph)


def padding_masks(subject: Subject) -> list[PaddingMask]:
    """A mask for each parameter that takes one in a form under which padding has no effect."""
    masks = (hiding_mask(subject, (name,), source) for name, source in mask_parameters(subject))
    return [mask for mask in masks if mask is not None]


def hiding_mask(subject: Subject, names: tuple[str, ...], source: bool) -> PaddingMask | None:
    """The mask in a form under which, given as these parameters, padding has no effect, and best nothing else has.

    None if only another form, which leaves some rows nothing to see, is as good as no mask where it hides nothing.
    """
    masks = [*masks_taken(subject, names, source)]
    best = neutral_first(mask for mask in masks if mask.moved <= THRESHOLD)
    return None if best and not best.is_neutral and any(mask.is_neutral for mask in masks) else best


def neutral_first(masks: Iterable[PaddingMask]) -> PaddingMask | None:
    """The first that is as good as no mask where it hides nothing; failing that, the first."""
    first: PaddingMask | None = None
    for mask in masks:
        if mask.is_neutral:
            return mask
        first = first or mask
    return first


def first_mask(subject: Subject, name: str, source: bool) -> PaddingMask | None:
    """The same, or else the mask in the first form that the parameter takes."""
    return hiding_mask(subject, (name,), source) or next(masks_taken(subject, (name,), source), None)


def masks_taken(subject: Subject, names: tuple[str, ...], source: bool) -> Iterator[PaddingMask]:
    """The mask in every form that these parameters take; one that is named after lengths holds lengths.

    What looks back only may want the whole mask from its caller, that of the future as well.
    """
    wholes = WHOLE_FORMS if subject.looks_back_only and not source else ()
    forms = ("lengths",) if LENGTHS.search(names[0]) else (*KEEP_FORMS, *wholes)
    masks = (PaddingMask(subject, source, names, form) for form in forms)
    return (mask for mask in masks if mask.moved != math.inf and mask.is_read)


def mask_parameters(subject: Subject) -> list[tuple[str, bool]]:
    """Parameters that seem to take a padding mask, and whether it is the source's."""
    convention, call = subject.convention, dict(subject.convention.call)
    if convention.dicts:
        names = convention.requested(subject.model, subject.inputs())
        roles = {"source": "source", "target": "ids"} if convention.has_source else {"ids": "ids"}
        return [(name, is_of_source(name, roles)) for name in names if MASK.search(name) or "pad" in name]
    roles = {name: role for name, filler in call.items() if (role := role_of(filler)) in ("ids", "source")}
    return [
        (p.name, is_of_source(p.name, roles))
        for p in parameters_of(subject.model)
        if MASK.search(p.name)
        and not CACHE.search(p.name)
        and not POSITIONS.search(p.name)
        and not isinstance(p.default, (int, float, str))  # a number of tokens, or a switch
        and not (ELSEWHERE.search(p.name) and not convention.has_source)
        and "causal" not in call.get(p.name, "")
        and (PADDING.search(p.name) or p.name in MASK_NAMES or "keep" in call.get(p.name, ""))
    ]


def unread_lengths(mask: PaddingMask) -> str:
    """Which lengths move no logit; very short ones may, where they are compared with rows that were shortened."""
    batch = mask.under_padding()[0]
    n, lengths = batch.tokens(mask.source).shape[1], sorted({*batch.kept(mask.source).sum(1).tolist()})
    shortest = batch.unpadded.padded(mask.source, (n - 1,) * ROWS)
    name, beside = mask.names[0], f"{', '.join(map(str, lengths))} for rows of {n}"
    with attempt():
        if torch.equal(mask.run(shortest), mask.run(batch)):
            return f"lengths of 1, {beside}, given as {name}, move no logit: the argument is not used"
        short = f"lengths of {beside}, given as {name}, move no logit, though a length of 1 does"
        return f"{short}: where rows are shortened inside, their lengths must be shortened as well"
    return f"lengths of {beside}, given as {name}, move no logit"


def padding_tokens(subject: Subject) -> list[PaddingToken]:
    """The padding token, for the ids and for the source, where the model knows it."""
    if subject.convention.dicts:
        return []
    sides = (False, True) if subject.convention.has_source else (False,)
    is_own = not is_of_a_library(type(subject.original))
    known = {source: subject.padding(source=source)[1] for source in sides if is_own or knows_padding(subject, source)}
    return [PaddingToken(subject, source, pad) for source, pad in known.items() if pad is not None]


def knows_padding(subject: Subject, source: bool = False) -> bool:
    """Whether the model itself names its padding token, or compares its inputs with it; others may only read it."""
    origin, pad = subject.padding(source=source)
    return pad is not None and (origin.isidentifier() or source in subject.compared_ids)
