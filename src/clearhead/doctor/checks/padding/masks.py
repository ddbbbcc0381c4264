"""The padding masks that a model takes, the forms in which they hide padding, and how far it moves logits."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import KEEP_FORMS, Inputs, Run, keep_filler, role_of
from clearhead.doctor.calling.names import CACHE, LENGTHS, MASK, PADDING, is_of_source, parameters_of
from clearhead.doctor.checks.padding.padding_tokens import ROWS
from clearhead.doctor.probes.dependency import change_of
from clearhead.doctor.problems import attempt
from clearhead.doctor.subject import Subject

THRESHOLD = 1e-4  # of the logits' spread: rounding stays far below
ELSEWHERE = re.compile(r"^(encoder|cross|memory)")  # of a source, where there is one
MASK_NAMES = ("mask", "src_mask", "source_mask", "tgt_mask", "trg_mask")


def padding_masks(subject: Subject) -> list[tuple[str, str, bool]]:
    """The parameters that take one, with a form under which padding is inert, and whether they are the source's."""
    tried = [(name, hiding_form(subject, (name,), source), source) for name, source in mask_parameters(subject)]
    return [(name, form, source) for name, form, source in tried if form is not None]


def hiding_form(subject: Subject, names: Sequence[str], source: bool) -> str | None:
    """The first form of a mask under which, given as these parameters, padding is inert."""
    for form in forms_of(names[0]):
        with attempt():  # the parameter may take a mask of another form
            if moved_under(subject, names, form, source) <= THRESHOLD:
                return form
    return None


def forms_of(name: str) -> tuple[str, ...]:
    """The forms that a mask of this name may have; lengths are told by their name, and are nothing else."""
    return ("lengths",) if LENGTHS.search(name) else tuple(KEEP_FORMS)


def mask_parameters(subject: Subject) -> list[tuple[str, bool]]:
    """Parameters that seem to take a padding mask, and whether it is the source's."""
    call = dict(subject.convention.call)
    roles = {name: role for name, filler in call.items() if (role := role_of(filler)) in ("ids", "source")}
    if subject.convention.as_dict:
        return _asked_masks(subject)
    return [
        (p.name, is_of_source(p.name, roles))
        for p in parameters_of(subject.model)
        if MASK.search(p.name)
        and not CACHE.search(p.name)
        and not isinstance(p.default, (int, float, str))  # a number of tokens, or a switch
        and not (ELSEWHERE.search(p.name) and not subject.convention.has_source)
        and "causal" not in call.get(p.name, "")
        and (PADDING.search(p.name) or p.name in MASK_NAMES or "keep" in call.get(p.name, ""))
    ]


def _asked_masks(subject: Subject) -> list[tuple[str, bool]]:
    """The same of a model that looks for them in a dict."""
    with subject.quiet():
        names = subject.convention.requested(subject.model, subject.inputs())
    roles = {"source": "source", "target": "ids"} if subject.convention.has_source else {"ids": "ids"}
    return [(name, is_of_source(name, roles)) for name in names if MASK.search(name) or "pad" in name]


def padded_batch(subject: Subject, source: bool) -> tuple[Inputs, Tensor, Tensor]:
    """A batch with padding where it would be seen, its keep mask, and other tokens to put there."""
    inputs, other = subject.inputs(ROWS, salt=5), subject.inputs(ROWS, salt=6)
    row, changed = inputs.tokens(source), other.tokens(source)
    keep = torch.ones_like(row, dtype=torch.bool)
    few, many = max(1, row.shape[1] // 4), max(1, row.shape[1] // 3)
    if source or not subject.looks_back_only:
        keep[0, -few:], keep[1, -many:] = False, False
    else:
        keep[0, :few], keep[1, :many] = False, False  # a causal model does not see what is on the right anyway
    return inputs, keep, changed


def keeps_what_is_one(form: str) -> bool:
    """Whether True or 1 means a real token."""
    return "keep" in form or form == "lengths"


def declared_polarity(name: str) -> bool | None:
    """What the field's conventions say: attention_mask keeps what is 1, key_padding_mask drops what is True."""
    if "attention_mask" in name:
        return True
    return False if "key_padding_mask" in name else None


def both_batches(inputs: Inputs, keep: Tensor, changed: Tensor, source: bool) -> tuple[Inputs, Inputs]:
    """The padded batch, and the same with other tokens under the padding."""
    padded = inputs.with_keep(source, keep)
    return padded, padded.with_tokens(source, torch.where(keep, inputs.tokens(source), changed))


def masked_run(subject: Subject, names: Sequence[str], form: str, source: bool) -> Run:
    """The model under a padding mask in one form, given as each of these parameters."""

    def run(batch: Inputs) -> Tensor:
        value = keep_filler(form, source)(batch, subject.convention.time_first)
        return subject.convention.logits(subject.model, batch, **dict.fromkeys(names, value))

    return run


def moved(
    subject: Subject, inputs: Inputs, keep: Tensor, changed: Tensor, names: Sequence[str], form: str, source: bool
) -> float:
    """How far the logits of real tokens move, of their spread."""
    run = masked_run(subject, names, form, source)
    with subject.quiet():
        before, after = (run(value) for value in both_batches(inputs, keep, changed, source))
    real = torch.ones_like(inputs.ids, dtype=torch.bool) if source else keep
    if not (before[real].isfinite().all() and after[real].isfinite().all()):
        raise FloatingPointError
    return change_of(before[real], after[real])


def moved_under(subject: Subject, names: Sequence[str], form: str, source: bool) -> float:
    """The same of the usual batch, which several checks ask for, and which is run once."""
    key = (tuple(names), form, source)
    if key not in subject.moved_under_masks:
        subject.moved_under_masks[key] = moved(subject, *padded_batch(subject, source), names, form, source)
    return subject.moved_under_masks[key]
