"""Padding in front: a prompt that is padded on the left must be read as it is without padding."""

from dataclasses import replace
from inspect import signature

import torch

from clearhead.doctor.calling.names import CACHE, LENGTHS, MASK, POSITIONS, is_of_a_library, parameters_of
from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Status, Subject, finding, model_check
from clearhead.doctor.checks.padding.masks import PaddingMask, padding_masks
from clearhead.doctor.checks.padding.padding_tokens import LENGTH_THRESHOLD, own_mixer
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.spec import Assumption

FRONT = 3  # tokens of padding


@model_check("P04", "left padding", order=170, needs=(*SOUND, "paddings"), of_tokens=True)
def left_padding(subject: Subject) -> list[Finding]:
    """A prompt with padding in front has the same logits as without it, given its mask and its positions."""
    if not subject.looks_back_only or subject.convention.has_source:
        raise Skipped("its prompts are not padded in front")
    mask = next(
        (mask for mask in padding_masks(subject) if not mask.source and not LENGTHS.search(mask.names[0])), None
    )
    if mask is None:
        raise Skipped("it takes no padding mask")
    name = mask.names[0]
    value = _moved(mask, None)
    if value <= LENGTH_THRESHOLD:
        subject.journal.paths.append(f"rows padded in front under {name}")
        return []
    names = [p.name for p in parameters_of(subject.model) if POSITIONS.search(p.name)]
    positions = next((name for name in names if not MASK.search(name) and not CACHE.search(name)), None)
    if positions is not None:
        value = _moved(mask, positions)
        if value <= LENGTH_THRESHOLD:
            reason = f"without {positions} it counts the padding"
            subject.journal.assumptions.append(
                Assumption("padding in front", f"its caller gives {positions}", (reason,))
            )
            return []
    elif not _generates_padded(subject, name):
        raise Skipped("its positions are absolute and cannot be given: padding belongs at the end")
    mixer = own_mixer(subject)
    names = [name] if positions is None else [name, positions]
    witness = f"with {FRONT} tokens of padding in front and {' and '.join(names)} given, a prompt's logits differ by "
    witness += f"{value:.1e} of their spread" + (f"; {mixer} mixes tokens without a mask" if mixer else "")
    status: Status = "fail" if positions is not None and not mixer else "warn"
    where = subject.attention_place
    return [finding("P04", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status)]


def _moved(mask: PaddingMask, positions: str | None) -> float:
    """How far logits move between rows alone and rows with padding in front, relative to their spread."""
    subject = mask.subject
    alone = subject.inputs(2, salt=17)
    filler = int(alone.ids[0, 0]) if subject.pad_id is None else subject.pad_id
    ids = torch.cat([torch.full((len(alone.ids), FRONT), filler), alone.ids], dim=1)
    keep = torch.arange(ids.shape[1]).expand(ids.shape) >= FRONT
    rows = replace(alone, keep=keep[:, FRONT:]), replace(alone, ids=ids, labels=ids, keep=keep)
    numbers = ((row.kept.long().cumsum(1) - 1).clamp(min=0) for row in rows)
    more = [{} if positions is None else {positions: number} for number in numbers]
    before, after = (mask.run(row, arguments) for row, arguments in zip(rows, more, strict=True))
    return change_of(before, after[:, FRONT:])


def _generates_padded(subject: Subject, mask: str) -> bool:
    """Whether a `generate` of the person's own takes such a mask: prompts of several lengths are padded in front."""
    method = getattr(type(subject.original), "generate", None)
    return method is not None and not is_of_a_library(method) and mask in signature(method).parameters
