"""Padding in front: a prompt that is padded on the left must be read as it is without padding."""

from inspect import signature

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import CACHE, LENGTHS, MASK, POSITIONS, is_of_a_library, parameters_of
from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Status, Subject, finding, model_check
from clearhead.doctor.checks.padding.amounts import MORE, beside_padding, own_mixer
from clearhead.doctor.checks.padding.masks import LENGTH_THRESHOLD, PaddingMask, padding_masks
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.spec import Assumption


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
    witness = f"with {MORE} tokens of padding in front and {' and '.join(names)} given, a prompt's logits differ by "
    witness += f"{value:.1e} of their spread" + (f"; {mixer} mixes tokens without a mask" if mixer else "")
    status: Status = "fail" if positions is not None and not mixer else "warn"
    where = subject.attention_place
    return [finding("P04", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status)]


def _moved(mask: PaddingMask, positions: str | None) -> float:
    """How far logits move between rows alone and rows with padding in front, relative to their spread."""
    alone, padded = beside_padding(mask, front=True)

    def counted(rows: Inputs) -> dict[str, object]:
        return {} if positions is None else {positions: (rows.kept().long().cumsum(1) - 1).clamp(min=0)}

    before, after = mask.run(alone, counted(alone)), mask.run(padded, counted(padded))
    return change_of(before[:-1], after[:-1, MORE:])


def _generates_padded(subject: Subject, mask: str) -> bool:
    """Whether a `generate` of the person's own takes such a mask: prompts of several lengths are padded in front."""
    method = getattr(type(subject.original), "generate", None)
    return method is not None and not is_of_a_library(method) and mask in signature(method).parameters
