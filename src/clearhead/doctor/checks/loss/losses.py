"""The loss that a model computes itself: what it asks for, and where it is computed."""

import inspect
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.calling.lengths import lengths_for
from clearhead.doctor.calling.names import (
    CACHE,
    LABELS,
    MASK,
    POSITIONS,
    SEGMENTS,
    file_of,
    is_of_a_library,
    parameters_of,
)
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Status, Subject, Where, finding, model_check
from clearhead.doctor.checks.loss.judge import never_scored
from clearhead.doctor.checks.loss.scoring import (
    MARKS,
    LossXray,
    judged_by_own_mark,
    loss_in,
    makes_a_loss,
    number_of_labels,
    quieter,
    xray_of_call,
)
from clearhead.doctor.probes.locations import place_of_call, place_of_module
from clearhead.doctor.probes.loss import FEW, STRAIGHT, Xray, ahead, offset_among, shares_at_offsets
from clearhead.doctor.probes.tensors import first_true
from clearhead.doctor.spec import Assumption

TARGET_FAULTS = ("D01", "D02", "D03", "D04", "D05", "D12", "I06")
LOSS_FAULTS = (*TARGET_FAULTS, "L01", "L02", "L03", "L04", "L05", "L06", "L07", "L08", "L10", "L11")

SHIFTS = re.compile(
    r"\bshift(ed)?_(logits|labels|targets|preds?)\b\s*[,=]"
    r"|(?<!not )(?<!never )(?<!n't )(?<!not be )shifted (in here|inside|internally)",
    re.I,
)
FOLLOWS = re.compile(  # about the targets themselves, in one clause and without a 'not'
    r"(targets?|labels?|\by\b)((?!\bnot\b|n't)[^.;\n]){0,60}"
    r"(that follow|tokens after|already shifted|(\bare|\bis|=|:|\bas) (the )?next tokens?\b)",
    re.I,
)
GIVES_NEXT = re.compile(  # how a data set gives a part of a text, and as its targets the same one token later
    r"def (__getitem__|get_batch|collate\w*)\((?:(?!\n\S|\n    def |\bdef )[\s\S])*?"
    r"\b(?P<text>[\w.]+)\[(?:\s*(?P<begin>[\w. ]*\w) ?:[^\[\]:]+|:\s*-1)\]"
    r"[\s\S]{0,160}?\b(?P=text)\[\s*(?:(?P=begin) ?\+ ?1|1) ?:"
)
ALIGNED = ("D01", "D02", "D03", "D12")  # faults of whoever gives the loss its logits and targets


@model_check("D02", "losses", order=220, covers=(*LOSS_FAULTS, "A08", "D18"), needs=STEADY, of_tokens=True)
def losses(subject: Subject) -> list[Finding]:
    """The loss that forward computes is a cross-entropy of the right targets."""
    name = labels_parameter(subject)
    if name is None:
        raise Skipped("it computes no loss")
    lengths = [subject.calling.T, *(T for T in lengths_for(subject.model) if T > subject.calling.T)]  # it may want all
    model, count = quieter(subject), number_of_labels(subject)
    for T, mark in product(lengths, (*MARKS, subject.pad_id)):
        if subject.calling.T != T:
            subject = replace(subject, calling=replace(subject.calling, T=T))
        labels = subject.inputs(3, salt=10).ids % count
        try:
            result = _read(subject, model, name, labels, mark)
            break
        except (AssertionError, IndexError, RuntimeError, ValueError):  # it does not know this mark or length
            continue
    else:
        raise Skipped(f"'{name}' took none of -100, -1 and a padding token")
    ids, read = subject.inputs(3, salt=9).ids, partial(_read, subject, model, name, labels)
    findings = (
        _aligned(subject, name, result.reading, ids)
        or judged_by_own_mark(subject, result, mark, read)
        or _ignores_a_token(subject, model, name, mark)
        or _outweighed(result)
    )
    # what a model returns as its loss is not a sum; that rows have the same weight may be meant
    certain: dict[str, Status] = {"L10": "fail"}
    findings = [replace(fault, status=certain.get(fault.id, fault.status)) for fault in findings]
    findings = [replace(fault, where=_where(subject, result, fault.id)) for fault in findings]
    has_failed = any(fault.status == "fail" for fault in findings)
    return findings + ([] if has_failed else _of_the_call(subject, model, name, result))


def _of_the_call(subject: Subject, model: nn.Module, name: str, result: LossXray) -> list[Finding]:
    """With targets it computes the same in evaluation whenever it is called, and leaves the targets as they are."""
    inputs, labels = subject.inputs(3, salt=9), result.reading.ids
    label_batch = labels.t() if subject.convention.time_first else labels

    def called() -> tuple[float | None, Tensor]:
        targets = label_batch.clone()
        loss = loss_in(subject.convention.raw(model, inputs, **{name: targets}))
        return None if loss is None else float(loss.detach()), targets

    with torch.enable_grad():
        (first, targets), (second, _) = called(), called()
    if result.dropouts and first != second and not model.training:
        drop = result.dropouts[0]
        witness = f"given '{name}', {drop.name} drops numbers in eval(): one batch has losses {first:.4f}, {second:.4f}"
        return [finding("A08", witness, where=Where("", type(subject.model).__name__, drop.file, drop.line))]
    if not torch.equal(targets, label_batch):
        row, position = first_true(targets != label_batch)
        witness = f"a call overwrites '{name}' {position} of row {row}: {int(label_batch[row, position])} becomes"
        return [finding("D18", f"{witness} {int(targets[row, position])}", where=place_of_module("", subject.model))]
    return []


def labels_parameter(subject: Subject) -> str | None:
    """The parameter that takes targets, if there is one."""
    parameters, arguments = parameters_of(subject.model), dict(subject.convention.call)
    for name in (p.name for p in parameters if LABELS.search(p.name)):
        is_free = arguments.get(name, "labels") == "labels"
        if is_free and not POSITIONS.search(name) and not MASK.search(name):
            return name
    others = [p.name for p in parameters if p.default is None and p.name not in arguments]
    others = [name for name in others if not any(kind.search(name) for kind in (MASK, CACHE, POSITIONS, SEGMENTS))]
    return next((name for name in others if makes_a_loss(subject, name)), None)


def _read(subject: Subject, model: nn.Module, name: str, labels: Tensor, mark: int | None) -> LossXray:
    """What it asks for beside three rows of tokens, if the second half of the last row of labels (B, T) is marked."""
    labels = labels.clone()
    if mark is not None:
        labels[2, subject.calling.T // 2 :] = mark
    return xray_of_call(subject, model, name, labels)


def _aligned(subject: Subject, name: str, reading: Xray, ids: Tensor) -> list[Finding]:
    """Whether the targets are where they should be, by what the model reads and by what its code says about them."""
    offset = reading.offset
    if reading.residual > STRAIGHT or (offset == 0 and subject.shifts_its_rows):
        return []
    if offset is None and offset_among(reading.targets, ids)[0] == 0:
        return [finding("D01", f"whatever '{name}' are given, the loss of position 3 asks for token 3 of the input")]
    if subject.kind == "causal" and offset is not None and (beside := _batch_beside(subject, name, offset)) is not None:
        return beside
    if subject.kind == "bidirectional" or offset not in (0, 1) or (subject.kind, offset) == ("seq2seq", 0):
        return []
    about = "shifts them itself" if offset == 1 else "takes them as already shifted"
    subject.journal.assumptions.append(Assumption("its loss", f"given '{name}' it {about}", (reading.sentence,)))
    text = _code_of_class(subject.original)
    says_shifts, says_follow = SHIFTS.search(text), FOLLOWS.search(text)
    gives_next = GIVES_NEXT.search(file_of(subject.original))
    if offset == 0 and ("label" in name or says_shifts) and not (says_follow or gives_next):
        more = ", and its code says that it shifts them" if says_shifts else ""
        witness = f"the loss of position 3 asks for label 3 itself, but '{name}' usually are the input's own ids{more}"
        return [finding("D01", witness, value=0, threshold=1, status="fail" if says_shifts else "warn")]
    reason = f"and {gives_next[1]}() in its file shifts them already" if gives_next else ""
    if says_follow and not ("label" in name and says_shifts):
        reason = f"but its code says that '{name}' are already shifted"
    if offset == 1 and reason:
        return [finding("D02", f"the loss of position 3 asks for target 4, {reason}", value=1, threshold=0)]
    return []


def _batch_beside(subject: Subject, name: str, offset: int) -> list[Finding] | None:
    """How the labels of the person's batch and the model's shift add up; None if there are no labels to tell."""
    if subject.own is None or subject.own.inputs.labels is None or subject.shifts_its_rows:
        return None
    labels, ids = subject.own.inputs.labels, subject.own.inputs.ids
    shares = shares_at_offsets(labels, ids, FEW) if labels.shape == ids.shape else {}
    fits = [offset for offset, share in shares.items() if share == 1]
    if len(fits) != 1:
        return None
    total = fits[0] + offset
    subject.journal.paths.append(f"the batch's '{name}' beside its ids")
    if total == 1:
        return []
    witness = f"the batch's '{name}' are {fits[0]} ahead of its tokens, and the loss shifts them by {offset} more"
    return [finding("D01" if total < 1 else "D02", witness, value=total, threshold=1)]


def _code_of_class(model: nn.Module) -> str:
    """The source of the model's own class, if it is a person's and not a library's."""
    if not is_of_a_library(type(model)):
        with suppress(OSError, TypeError):
            return inspect.getsource(type(model))
    return ""


def _ignores_a_token(subject: Subject, model: nn.Module, name: str, mark: int | None) -> list[Finding]:
    """If a number that is not a token marks what is ignored, no token may be ignored as well."""
    if mark is None or mark >= 0:
        return []
    V, T = number_of_labels(subject), subject.calling.T
    edge = [*range(min(V, 2 * T)), *range(max(0, V - T), V)]
    labels = torch.tensor((edge * (3 * T))[: 3 * T]).view(3, T)
    labels[2, -1] = mark
    try:
        reading = xray_of_call(subject, model, name, labels).reading
    except (Skipped, IndexError, RuntimeError, ValueError):
        return []
    offset = reading.offset if reading.offset is not None else offset_among(reading.targets, labels)[0] or 0
    expected = ahead(labels, offset)
    for token in dict.fromkeys(expected[(expected >= 0) & ~reading.scored].tolist()):
        if token != subject.pad_id and not reading.scored[expected == token].any():
            is_padding = None if subject.pad_id is None else False
            return [never_scored(token, f", like those marked {mark}", is_padding=is_padding)]
    return []


def _outweighed(result: LossXray) -> list[Finding]:
    """What is added to the cross-entropy stays smaller than it."""
    reading = result.reading
    if reading.residual > STRAIGHT:
        return []
    log_p = F.log_softmax(result.logits, dim=-1)  # (B, T, V)
    log_likelihood = log_p.gather(-1, reading.targets.clamp_min(0)[..., None])[..., 0]  # (B, T)
    entropy = -float((log_likelihood * reading.weights)[reading.scored].sum())
    rest = reading.value - entropy
    if entropy <= 0 or abs(rest) <= 2 * entropy:
        return []
    witness = f"the cross-entropy is only {entropy:.3g} of a loss of {reading.value:.3g}: the rest outweighs it"
    return [finding("L11", witness, value=abs(rest) / entropy, threshold=2, status="warn")]


def _where(subject: Subject, result: LossXray, id: str) -> Where:
    """The innermost module that computes the loss; for a fault of alignment, the one that gives it its logits."""
    value = result.loss.detach().cpu()
    for call in result.calls:
        scalars = [t for t in call.outputs if t.dim() == 0 and torch.equal(t, value.to(t))]
        if not scalars or call.module is None or not call.name:
            continue
        whole = any(t.numel() == result.logits.numel() for t in call.inputs)
        if id not in ALIGNED or whole:
            return place_of_call(call)
    return place_of_module("", subject.model)
