"""The loss that a model computes itself: what it asks for, and where it is computed."""

import inspect
import re
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.doctor.borrow import twin
from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.checks.loss.verdicts import IGNORED, judge
from clearhead.doctor.conventions.names import LABELS, MASK, POSITIONS, parameters_of
from clearhead.doctor.conventions.outputs import arrange, find_logits, follow, leaves
from clearhead.doctor.instruments.loss import STRAIGHT, Xray, offset_among, read, undone
from clearhead.doctor.instruments.tracing import Call, home_of, recorded_modules
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding, Status, Where
from clearhead.doctor.spec import Assumption

LOUD = 6.0  # spread of logits above which a softmax is all but one token, and shows no line
MARKS = (IGNORED, -1)  # what people write where there is nothing to learn
SHIFTS = re.compile(r"\bshift(ed)?_(logits|labels|targets|preds?)\b\s*[,=]|shifted (in here|inside|internally)", re.I)
FOLLOWS = re.compile(
    r"(targets?|labels?|\by\b)[^.\n]{0,60}(that follow|the next token|tokens after|already shifted)", re.I
)
ALIGNED = ("D01", "D02", "D03")  # faults of whoever gives the loss its logits and targets


@dataclass(frozen=True)
class Scored:
    """One call with targets: its loss and logits with their graph, and the modules that were called."""

    loss: Tensor
    logits: Tensor
    labels: Tensor
    calls: list[Call]


def losses(patient: Patient) -> list[Finding]:
    """The loss that the model computes itself, where it takes targets."""
    name = labels_parameter(patient)
    if name is None:
        raise Skipped("it computes no loss")
    inputs = patient.inputs(3, salt=9)
    model = _quiet(patient)
    labels, mark = patient.inputs(3, salt=10).ids, None
    scored = None
    for mark in (*MARKS, patient.pad_id):
        marked = labels.clone()
        if mark is not None:
            marked[2, patient.found.T // 2 :] = mark  # two rows are full, one is half
        try:
            scored = _scored(patient, model, name, marked)
            break
        except (IndexError, RuntimeError):  # it is no token to it
            continue
    if scored is None:
        raise Skipped(f"'{name}' took neither {IGNORED} nor a padding token")
    seen, logits = _xray(scored)
    ends = mark is not None and mark in _end_ids(patient)
    found = _aligned(patient, name, seen, inputs.ids)
    found = found or judge(seen, scored.labels, logits, pad_id=mark, ends=ends)
    found = found or _ignores_a_token(patient, model, name, mark) or _outweighed(seen, logits)
    # one batch twice should have the loss of that batch: what a model gives out as its loss is no sum
    found = [replace(one, status="fail") if one.id == "L10" else one for one in found]
    return [replace(one, where=_where(patient, model, scored, one.id)) for one in found]


def _end_ids(patient: Patient) -> list[Any]:
    """The token that ends a text, as the model and its config call it."""
    owners = (patient.original, getattr(patient.original, "config", None))
    return [getattr(owner, name, None) for owner in owners for name in ("eos_token_id", "eos_id", "eos_idx")]


def labels_parameter(patient: Patient) -> str | None:
    """The parameter that takes targets, if there is one."""
    return next((p.name for p in parameters_of(patient.model) if _is_labels(patient, p.name)), None)


def _quiet(patient: Patient) -> nn.Module:
    """The shaken copy, or a fainter one of the same make whose logits are close enough to each other to be read."""
    inputs = patient.inputs(3, salt=9)
    with torch.no_grad():
        if float(patient.run(inputs).std()) < LOUD:
            return patient.model
        model = twin(patient.fresh)
        for _ in range(8):
            if float(patient.run(inputs, model=model).std()) < LOUD / 3:
                break
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(0.5)
    return model


def _is_labels(patient: Patient, name: str) -> bool:
    given = any(parameter == name and filler != "labels" for parameter, filler in patient.convention.call)
    return bool(LABELS.search(name)) and not given and not POSITIONS.search(name) and not MASK.search(name)


def _scored(patient: Patient, model: nn.Module, name: str, labels: Tensor) -> Scored:
    inputs = patient.inputs(3, salt=9)
    with torch.enable_grad(), recorded_modules(model) as calls:
        given = labels.t() if patient.convention.time_first else labels
        value = patient.convention.raw(model, inputs, **{name: given})
    loss = next(
        (leaf for _, leaf in leaves(value) if isinstance(leaf, Tensor) and leaf.dim() == 0 and leaf.requires_grad),
        None,
    )
    path = find_logits(value, len(inputs.ids), patient.found.T, patient.found.vocab_size)
    logits = None if path is None else follow(value, path)
    if loss is None or not isinstance(logits, Tensor) or not logits.requires_grad:
        raise Skipped("it returned no loss beside its logits")
    return Scored(loss, logits, labels, calls)


def _xray(scored: Scored) -> tuple[Xray, Tensor]:
    """What is asked for, and of which logits (B, T, V)."""
    try:
        (gradient,) = torch.autograd.grad(scored.loss, scored.logits)
    except RuntimeError:
        raise Skipped("its loss is not made from the logits that it returns") from None
    there, slope = (arrange(t.detach().cpu(), *scored.labels.shape) for t in (scored.logits, gradient))
    if there is None or slope is None:
        raise Skipped("its logits change their shape when it is given targets")
    logits, slope = undone(there.double(), slope.double())
    return read(slope, logits, scored.labels, float(scored.loss.detach())), logits


def _aligned(patient: Patient, name: str, seen: Xray, ids: Tensor) -> list[Finding]:
    """Whether the targets stand where they should, by what the model reads and by what its code says of them."""
    if seen.residual > STRAIGHT or (seen.offset == 0 and patient.shifts_its_rows):
        return []
    if seen.offset is None and offset_among(seen.targets, ids)[0] == 0:
        return [finding("D01", f"whatever '{name}' are given, the loss of position 3 asks for token 3 of the input")]
    if patient.kind == "bidirectional" or seen.offset not in (0, 1) or (patient.kind, seen.offset) == ("seq2seq", 0):
        return []
    about = "shifts them by itself" if seen.offset == 1 else "takes them as already shifted"
    patient.assumptions.append(Assumption("its loss", f"given '{name}' it {about}", (seen.sentence,)))
    words = _words(patient.original)
    if seen.offset == 0 and ("label" in name or SHIFTS.search(words)) and not FOLLOWS.search(words):
        status: Status = "fail" if SHIFTS.search(words) else "warn"
        said = ", and its code says that it shifts them" if status == "fail" else ""
        witness = (
            f"the loss of position 3 asks for label 3 itself, where '{name}' usually are the input's own ids{said}"
        )
        return [finding("D01", witness, value=0, threshold=1, status=status)]
    if seen.offset == 1 and FOLLOWS.search(words) and not _both_said(words, name):
        witness = f"the loss of position 3 asks for target 4, and its code says that '{name}' follow their inputs"
        return [finding("D02", witness, value=1, threshold=0)]
    return []


def _both_said(words: str, name: str) -> bool:
    """Whether the code speaks of labels that it shifts itself, so that it cannot be held to the other words."""
    return "label" in name and bool(SHIFTS.search(words))


def _words(model: nn.Module) -> str:
    """The source of the model's own class, where it is a person's and not a library's."""
    cls = type(model)
    if cls.__module__.startswith(("torch.", "transformers.")):
        return ""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ""


def _ignores_a_token(patient: Patient, model: nn.Module, name: str, mark: int | None) -> list[Finding]:
    """Where a number that is no token marks what is not learnt, every token is: none is a second mark."""
    if mark is None or mark >= 0:
        return []
    V, T = patient.found.vocab_size, patient.found.T
    edge = [*range(min(V, 2 * T)), *range(max(0, V - T), V)]
    labels = torch.tensor((edge * (3 * T))[: 3 * T]).view(3, T)
    labels[2, -1] = mark
    try:
        seen, _ = _xray(_scored(patient, model, name, labels))
    except (Skipped, IndexError, RuntimeError):
        return []
    offset = seen.offset if seen.offset is not None else offset_among(seen.targets, labels)[0] or 0
    wanted = torch.full_like(labels, mark)
    wanted[:, : T - offset] = labels[:, offset:]
    asked = wanted != mark
    for token in dict.fromkeys(wanted[asked & ~seen.scored].tolist()):
        if token != patient.pad_id and not seen.scored[wanted == token].any():
            witness = f"positions that are to predict token {token} have weight 0, as those marked {mark} have"
            return [finding("L08", witness, value=0.0)]
    return []


def _outweighed(seen: Xray, logits: Tensor) -> list[Finding]:
    """What else is added to the cross-entropy stays below it."""
    if seen.residual > STRAIGHT:
        return []
    told = F.log_softmax(logits, dim=-1).gather(-1, seen.targets.clamp_min(0)[..., None])[..., 0]  # (B, T)
    entropy = -float((told * seen.weights)[seen.scored].sum())
    rest = seen.value - entropy
    if entropy <= 0 or abs(rest) <= 2 * entropy:
        return []
    witness = f"the loss is {seen.value:.3g}, of which the cross-entropy is {entropy:.3g}: the rest outweighs it"
    return [finding("L11", witness, value=abs(rest) / entropy, threshold=2, status="warn")]


def _where(patient: Patient, model: nn.Module, scored: Scored, id: str) -> Where:
    """The innermost module that computes the loss; for its alignment, whoever gives that its logits."""
    value = scored.loss.detach().cpu()
    for call in scored.calls:
        made = [t for t in call.outputs if t.dim() == 0 and torch.equal(t, value.to(t))]
        if not made or call.module is None or not call.name:
            continue
        whole = any(t.numel() == scored.logits.numel() for t in call.inputs)
        if id not in ALIGNED or whole:
            return Where(call.name, type(call.module).__name__, *home_of(call.module))
    return Where("", type(patient.model).__name__, *home_of(patient.model))
