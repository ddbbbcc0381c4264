"""The loss that a model computes itself: what it asks for, and where it is computed."""

import inspect
import re
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.calling.names import CACHE, LABELS, MASK, POSITIONS, SEGMENTS, parameters_of
from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.checks.loss.judge import judge
from clearhead.doctor.checks.loss.scoring import (
    MARKS,
    Scored,
    Unscored,
    makes_a_loss,
    number_of_labels,
    quieter,
    scored,
    xrayed,
)
from clearhead.doctor.probes.locations import place_of_call, place_of_module
from clearhead.doctor.probes.loss import FEW, OFFSETS, STRAIGHT, Xray, offset_among
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.spec import Assumption
from clearhead.doctor.subject import Subject

TARGET_FAULTS = ("D01", "D02", "D03", "D04", "D05", "D12", "I06")
LOSS_FAULTS = (*TARGET_FAULTS, "L01", "L02", "L03", "L04", "L05", "L06", "L07", "L08", "L10", "L11")

SHIFTS = re.compile(
    r"\bshift(ed)?_(logits|labels|targets|preds?)\b\s*[,=]"
    r"|(?<!not )(?<!never )(?<!n't )(?<!not be )shifted (in here|inside|internally)",
    re.I,
)
FOLLOWS = re.compile(  # said of the targets themselves, in one clause and without a 'not'
    r"(targets?|labels?|\by\b)((?!\bnot\b|n't)[^.;\n]){0,60}"
    r"(that follow|tokens after|already shifted|(\bare|\bis|=|:|\bas) (the )?next tokens?\b)",
    re.I,
)
OTHER_ROWS = 0.2  # of the targets: more of them come from other rows than by an end of a row that runs into the next
ALIGNED = ("D01", "D02", "D03", "D12")  # faults of whoever gives the loss its logits and targets


@model_check(
    "D02",
    "losses",
    order=220,
    covers=LOSS_FAULTS,
    holds="the model's own loss is a cross-entropy of the right targets",
    needs=("finite", "deterministic"),
    of_tokens=True,
)
def losses(subject: Subject) -> list[Finding]:
    """The loss that the model computes itself, where it takes targets."""
    name = labels_parameter(subject)
    if name is None:
        raise Skipped("it computes no loss")
    inputs = subject.inputs(3, salt=9)
    unscored = quieter(subject)
    labels, mark = subject.inputs(3, salt=10).ids % number_of_labels(subject), None
    result = None
    for mark in (*MARKS, subject.pad_id):
        marked = labels.clone()
        if mark is not None:
            marked[2, subject.calling.T // 2 :] = mark  # two rows are full, one is half
        try:
            result = scored(subject, unscored, name, marked)
            break
        except (IndexError, RuntimeError, ValueError):  # it is no token to it
            continue
    if result is None:
        raise Skipped(f"'{name}' took none of -100, -1 and a padding token")
    reading, logits = xrayed(result)
    ends = mark is not None and mark in end_ids(subject)
    findings = _aligned(subject, name, reading, inputs.ids)
    findings = findings or judge(reading, result.labels, logits, pad_id=mark, ends=ends)
    findings = findings or _ignores_a_token(subject, unscored, name, mark) or _outweighed(reading, logits)
    # one batch twice should have the loss of that batch: what a model gives out as its loss is no sum
    findings = [replace(fault, status="fail") if fault.id == "L10" else fault for fault in findings]
    return [replace(fault, where=_where(subject, result, fault.id)) for fault in findings]


def end_ids(subject: Subject) -> list[object]:
    """The token that ends a text, as the model and its config call it."""
    owners = (subject.original, getattr(subject.original, "config", None))
    return [getattr(owner, name, None) for owner in owners for name in ("eos_token_id", "eos_id", "eos_idx")]


def labels_parameter(subject: Subject) -> str | None:
    """The parameter that takes targets, if there is one."""
    parameters = parameters_of(subject.model)
    named = next((p.name for p in parameters if _is_labels(subject, p.name)), None)
    if named is not None:
        return named
    arguments = dict(subject.convention.call)
    others = [p.name for p in parameters if p.default is None and p.name not in arguments]
    others = [name for name in others if not any(kind.search(name) for kind in (MASK, CACHE, POSITIONS, SEGMENTS))]
    return next((name for name in others if makes_a_loss(subject, name)), None)


def _is_labels(subject: Subject, name: str) -> bool:
    is_given = any(parameter == name and filler != "labels" for parameter, filler in subject.convention.call)
    return bool(LABELS.search(name)) and not is_given and not POSITIONS.search(name) and not MASK.search(name)


def _aligned(subject: Subject, name: str, reading: Xray, ids: Tensor) -> list[Finding]:
    """Whether the targets stand where they should, by what the model reads and by what its code says of them."""
    if reading.residual > STRAIGHT or (reading.offset == 0 and subject.shifts_its_rows):
        return []
    if reading.offset is None and offset_among(reading.targets, ids)[0] == 0:
        return [finding("D01", f"whatever '{name}' are given, the loss of position 3 asks for token 3 of the input")]
    if reading.offset is None and (witness := _of_other_rows(reading)):
        return [finding("D12", witness)]
    if subject.kind == "causal" and reading.offset is not None:
        findings = _batch_beside(subject, name, reading.offset)
        if findings is not None:
            return findings
    if (
        subject.kind == "bidirectional"
        or reading.offset not in (0, 1)
        or (subject.kind, reading.offset) == ("seq2seq", 0)
    ):
        return []
    about = "shifts them by itself" if reading.offset == 1 else "takes them as already shifted"
    subject.journal.assumptions.append(Assumption("its loss", f"given '{name}' it {about}", (reading.sentence,)))
    text = _words(subject.original)
    if reading.offset == 0 and ("label" in name or SHIFTS.search(text)) and not FOLLOWS.search(text):
        status: Status = "fail" if SHIFTS.search(text) else "warn"
        more = ", and its code says that it shifts them" if status == "fail" else ""
        witness = (
            f"the loss of position 3 asks for label 3 itself, where '{name}' usually are the input's own ids{more}"
        )
        return [finding("D01", witness, value=0, threshold=1, status=status)]
    if reading.offset == 1 and FOLLOWS.search(text) and not _both_said(text, name):
        witness = f"the loss of position 3 asks for target 4, and its code says that '{name}' follow their inputs"
        return [finding("D02", witness, value=1, threshold=0)]
    return []


def _of_other_rows(reading: Xray) -> str | None:
    """Where the targets of a row are labels of others, as where logits and labels were flattened in unlike orders."""
    same = (reading.targets[:, :, None] == reading.ids[:, None, :]).any(-1)  # (B, T): among the labels of its own row
    known = (reading.targets[:, :, None, None] == reading.ids).flatten(2).any(-1)  # of any row
    is_asked = reading.targets >= 0
    foreign = is_asked & ~same & known
    if not foreign.sum() > OTHER_ROWS * is_asked.sum():
        return None
    row, position = (int(part) for part in foreign.nonzero()[0])
    token = int(reading.targets[row, position])
    other = int((reading.ids == token).any(-1).nonzero()[0])
    return f"position {position} of row {row} is asked for token {token}, which is a label of row {other} only"


def _batch_beside(subject: Subject, name: str, offset: int) -> list[Finding] | None:
    """What the person's own labels and the model's shift come to; None where there are no labels to tell it."""
    if subject.own is None or subject.own.inputs.labels is None or subject.shifts_its_rows:
        return None
    there = _ahead(subject.own.inputs.labels, subject.own.inputs.ids)
    if there is None:
        return None
    subject.journal.paths.append(f"the batch's '{name}' beside its ids")
    offset_of_target = there + offset
    if offset_of_target == 1:
        return []
    witness = f"the batch's '{name}' stand {there} ahead of its tokens, and the loss looks {offset} further on"
    return [finding("D01" if offset_of_target < 1 else "D02", witness, value=offset_of_target, threshold=1)]


def _ahead(labels: Tensor, ids: Tensor) -> int | None:
    """How many tokens on the labels (B, T) of a batch stand among its ids (B, T); None if several numbers fit."""
    if labels.shape != ids.shape:
        return None
    T, fits = ids.shape[1], []
    for offset in (offset for offset in OFFSETS if abs(offset) < T):
        first, last = max(0, -offset), min(T, T - offset)
        targets, there = labels[:, first:last], ids[:, first + offset : last + offset]  # (B, T - |offset|)
        known = targets >= 0
        if known.sum() >= FEW and (targets == there)[known].all():
            fits.append(offset)
    return fits[0] if len(fits) == 1 else None


def _both_said(text: str, name: str) -> bool:
    """Whether the code speaks of labels that it shifts itself, so that it cannot be held to the other words."""
    return "label" in name and bool(SHIFTS.search(text))


def _words(model: nn.Module) -> str:
    """The source of the model's own class, where it is a person's and not a library's."""
    cls = type(model)
    if cls.__module__.startswith(("torch.", "transformers.")):
        return ""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ""


def _ignores_a_token(subject: Subject, unscored: Unscored, name: str, mark: int | None) -> list[Finding]:
    """Where a number that is no token marks what is not learnt, every token is: none is a second mark."""
    if mark is None or mark >= 0:
        return []
    V, T = number_of_labels(subject), subject.calling.T
    edge = [*range(min(V, 2 * T)), *range(max(0, V - T), V)]
    labels = torch.tensor((edge * (3 * T))[: 3 * T]).view(3, T)
    labels[2, -1] = mark
    try:
        reading, _ = xrayed(scored(subject, unscored, name, labels))
    except (Skipped, IndexError, RuntimeError, ValueError):
        return []
    offset = reading.offset if reading.offset is not None else offset_among(reading.targets, labels)[0] or 0
    expected = torch.full_like(labels, mark)
    expected[:, : T - offset] = labels[:, offset:]
    is_asked = expected != mark
    for token in dict.fromkeys(expected[is_asked & ~reading.scored].tolist()):
        if token != subject.pad_id and not reading.scored[expected == token].any():
            witness = f"positions that are to predict token {token} have weight 0, as those marked {mark} have"
            return [finding("L08", witness, value=0.0)]
    return []


def _outweighed(reading: Xray, logits: Tensor) -> list[Finding]:
    """What else is added to the cross-entropy stays below it."""
    if reading.residual > STRAIGHT:
        return []
    log_likelihood = F.log_softmax(logits, dim=-1).gather(-1, reading.targets.clamp_min(0)[..., None])[..., 0]  # (B, T)
    entropy = -float((log_likelihood * reading.weights)[reading.scored].sum())
    rest = reading.value - entropy
    if entropy <= 0 or abs(rest) <= 2 * entropy:
        return []
    witness = f"the loss is {reading.value:.3g}, of which the cross-entropy is {entropy:.3g}: the rest outweighs it"
    return [finding("L11", witness, value=abs(rest) / entropy, threshold=2, status="warn")]


def _where(subject: Subject, result: Scored, id: str) -> Where:
    """The innermost module that computes the loss; for its alignment, whoever gives that its logits."""
    value = result.loss.detach().cpu()
    for call in result.calls:
        scalars = [t for t in call.outputs if t.dim() == 0 and torch.equal(t, value.to(t))]
        if not scalars or call.module is None or not call.name:
            continue
        whole = any(t.numel() == result.logits.numel() for t in call.inputs)
        if id not in ALIGNED or whole:
            return place_of_call(call)
    return place_of_module("", subject.model)
