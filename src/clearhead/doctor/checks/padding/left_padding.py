"""Padding in front: a prompt that is filled up on the left must be read as it is alone."""

from dataclasses import replace
from inspect import signature

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs, keep_filler
from clearhead.doctor.calling.names import CACHE, LENGTHS, MASK, POSITIONS, parameters_of
from clearhead.doctor.checks.base import SOUND, Skipped, finding, model_check
from clearhead.doctor.checks.locations import attention_place
from clearhead.doctor.checks.padding.masks import padding_masks
from clearhead.doctor.checks.padding.padding_tokens import LENGTH_THRESHOLD, own_mixer
from clearhead.doctor.probes.dependency import change_of
from clearhead.doctor.report.findings import Finding, Status
from clearhead.doctor.spec import Assumption
from clearhead.doctor.subject import Subject

FRONT = 3  # tokens of padding


@model_check(
    "P04",
    "left padding",
    order=170,
    covers=("P04",),
    holds="a prompt behind padding is read as it is alone",
    needs=(*SOUND, "paddings"),
    of_tokens=True,
)
def left_padding(subject: Subject) -> list[Finding]:
    """Positions may be absolute; then their caller must be able to say them, and that must do."""
    if not subject.looks_back_only or subject.convention.has_source:
        raise Skipped("no prompt of it is padded in front")
    masks = [(name, form) for name, form, source in padding_masks(subject) if not source and not LENGTHS.search(name)]
    if not masks:
        raise Skipped("it takes no padding mask")
    name, form = masks[0]
    value = _moved(subject, name, form, None)
    if value <= LENGTH_THRESHOLD:
        subject.journal.paths.append(f"rows padded in front under {name}")
        return []
    parameter = _positions(subject)
    if parameter is not None:
        value = _moved(subject, name, form, parameter)
        if value <= LENGTH_THRESHOLD:
            reason = f"without {parameter} it counts the padding"
            numbered = Assumption("padding in front", f"its caller gives {parameter}", (reason,))
            subject.journal.assumptions.append(numbered)
            return []
    elif not _generates_padded(subject, name):
        raise Skipped("its positions are absolute, and no caller can say them: padding belongs behind")
    mixer = own_mixer(subject)
    names = name if parameter is None else f"{name} and {parameter}"
    witness = f"behind {FRONT} tokens of padding, with {names} given, its logits differ by {value:.1e} of their spread"
    witness += f"; {mixer} mixes tokens, and knows no mask" if mixer else ""
    status: Status = "fail" if parameter is not None and not mixer else "warn"
    where = attention_place(subject)
    return [finding("P04", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status)]


def _moved(subject: Subject, mask: str, form: str, positions: str | None) -> float:
    """How far logits move between rows alone and behind some padding, of their spread."""
    alone = subject.inputs(2, salt=17)
    filler = int(alone.ids[0, 0]) if subject.pad_id is None else subject.pad_id
    ids = torch.cat([torch.full((len(alone.ids), FRONT), filler), alone.ids], dim=1)
    keep = torch.ones_like(ids, dtype=torch.bool)
    keep[:, :FRONT] = False
    rows = replace(alone, keep=keep[:, FRONT:]), replace(alone, ids=ids, labels=ids, keep=keep)
    with subject.quiet():
        before, after = (
            subject.convention.logits(subject.model, row, **_given(subject, row, mask, form, positions)) for row in rows
        )
    return change_of(before, after[:, FRONT:])


def _given(subject: Subject, inputs: Inputs, mask: str, form: str, positions: str | None) -> dict[str, Tensor]:
    arguments = {mask: keep_filler(form, False)(inputs, subject.convention.time_first)}
    if positions is not None:
        arguments[positions] = (inputs.kept.long().cumsum(1) - 1).clamp(min=0)
    return arguments


def _positions(subject: Subject) -> str | None:
    """The parameter that takes positions of tokens."""
    names = [p.name for p in parameters_of(subject.model) if POSITIONS.search(p.name)]
    return next((name for name in names if not MASK.search(name) and not CACHE.search(name)), None)


def _generates_padded(subject: Subject, mask: str) -> bool:
    """Whether a `generate` of the person's own takes such masks: prompts of several lengths are padded in front."""
    method = getattr(type(subject.original), "generate", None)
    if method is None or str(method.__module__).startswith(("transformers.", "torch.")):
        return False
    return mask in signature(method).parameters
