"""A loss that a model computes in a method of its own, beside `forward`."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import LABELS, TOKENS
from clearhead.doctor.calling.outputs import arrange
from clearhead.doctor.checks.base import Skipped, model_check
from clearhead.doctor.checks.loss.judge import judge
from clearhead.doctor.checks.loss.losses import LOSS_FAULTS, end_ids
from clearhead.doctor.checks.loss.scoring import MARKS, alike, loss_in, quieter, with_slope
from clearhead.doctor.checks.padding.padding_tokens import knows_padding
from clearhead.doctor.probes.flow import made_by
from clearhead.doctor.probes.loss import Xray, read, undone
from clearhead.doctor.probes.tracing import recorded_ops
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.state_guard import twin
from clearhead.doctor.subject import Subject

CALLED = re.compile(  # not what is added to it: the loss of a balance, of a reconstruction
    r"^((compute|calc|calculate|get|forward|step|batch|sequence|train|training)_"
    r"|(lm|language_model|next_token|token|ce|cross_entropy|nll)_)?loss(_fn|_function|_on_batch)?$|^train(ing)?_step$",
    re.I,
)
BATCH = re.compile(r"^(batch|data|samples?)$")  # what holds inputs and targets
NUMBER = re.compile(r"(^|_)(idx|index|nb|no|step)$")  # of the batch
NAMES = (("input_ids", "ids", "tokens", "inputs", "x"), ("labels", "targets", "target", "y"))
FRAMES = (slice(None), slice(None, -1), slice(1, None))  # the part of a row that the model is given


@model_check(
    "D02",
    "loss methods",
    order=230,
    covers=LOSS_FAULTS,
    holds="the loss of a method beside forward is a cross-entropy of the right targets",
    needs=("finite", "deterministic"),
    of_tokens=True,
)
def loss_methods(subject: Subject) -> list[Finding]:
    """A method that computes a loss of tokens, or of tokens and targets, asks for the next token of each."""
    of_next = subject.kind == "causal" and not subject.shifts_its_rows
    if not of_next or subject.convention.time_first or subject.convention.has_source:
        raise Skipped("only methods of models that predict the next token are looked at")
    for method in _methods(subject):
        findings = _judged(subject, method)
        if findings is not None:
            return findings
    raise Skipped("it has no method that computes a loss from tokens")


def _methods(subject: Subject) -> list[Callable[..., object]]:
    """Those of the person's own class that ask for tokens alone, or for tokens and targets."""
    cls = type(subject.original)
    if cls.__module__.startswith(("torch.", "transformers.", "clearhead.")):
        return []
    methods: list[Callable[..., object]] = []
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not CALLED.search(name) or method.__module__ != cls.__module__:
            continue
        needed = _needed(method)
        if needed and TOKENS.search(needed[0]) and len(needed) < 3 and _styles(*needed):
            methods.append(method)
    return methods


class CallStyle(NamedTuple):
    """How a method is given tokens and targets (B, T); `alone`: the tokens are its targets as well."""

    alone: bool
    arguments: Callable[[Tensor, Tensor], tuple[object, ...]]


def _styles(first: str, second: str | None = None) -> list[CallStyle]:
    """Those that the names of what it asks for allow."""
    if second is not None and LABELS.search(second):
        return [CallStyle(False, lambda ids, labels: (ids, labels))]
    if second is not None and not NUMBER.search(second):
        return []
    more = () if second is None else (0,)
    styles = [CallStyle(True, lambda ids, labels: (ids, *more))]
    if BATCH.search(first):
        named = [dict.fromkeys(names, number) for number, names in enumerate(NAMES)]
        styles.append(CallStyle(False, lambda ids, labels: ((ids, labels), *more)))
        styles.append(
            CallStyle(
                False, lambda ids, labels: ({n: (ids, labels)[k] for part in named for n, k in part.items()}, *more)
            )
        )
    return styles


def _needed(method: Callable[..., object]) -> list[str]:
    """What it asks for beside the model."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def _judged(subject: Subject, method: Callable[..., object]) -> list[Finding] | None:
    """What it asks for; None where it cannot be called, or its logits are not to be found."""
    model = twin(quieter(subject).model, subject.device)  # it may well take a step with it
    pad = subject.pad_id if knows_padding(subject) else None
    for style in _styles(*_needed(method)):
        for mark in (pad,) if style.alone else (*MARKS, pad):
            ids = subject.inputs(3, salt=9).ids
            labels = ids if style.alone else subject.inputs(3, salt=10).ids
            if mark is not None:
                labels[2, subject.calling.T // 2 :] = mark  # two rows are full, one is half
            with attempt() as attempted, torch.enable_grad(), recorded_ops() as ops:
                loss = loss_in(method(model, *style.arguments(ids.clone(), labels.clone())))
            if attempted.failed:  # it takes something else
                continue
            tensors = [tensor for call in ops.calls for tensor in made_by(call) if tensor.requires_grad]
            framed = None if loss is None else _framed(subject, model, ids, loss, tensors)
            if loss is not None and framed is not None:
                logits, slope = undone(*framed)
                reading = read(slope, logits, labels, float(loss.detach()))
                return _told(subject, method, reading, logits, style, mark)
    return None


def _told(
    subject: Subject, method: Callable[..., object], reading: Xray, logits: Tensor, style: CallStyle, mark: int | None
) -> list[Finding]:
    """The faults in what it asks for; `mark` stands in its targets for what is not."""
    subject.journal.paths.append(f"{method.__name__}()")
    ends = mark is not None and mark in end_ids(subject)
    findings = judge(reading, reading.ids, logits, pad_id=mark, shifts=True if style.alone else None, ends=ends)
    code = method.__code__
    where = Where("", type(subject.original).__name__, code.co_filename, code.co_firstlineno)
    return [replace(fault, where=where) for fault in findings]


def _framed(
    subject: Subject, model: nn.Module, ids: Tensor, loss: Tensor, tensors: list[Tensor]
) -> tuple[Tensor, Tensor] | None:
    """Logits and their gradients (B, T, V), zero where the model was not asked."""
    for frame in FRAMES:
        logits = _logits_among(subject, model, ids[:, frame], tensors)
        if logits is None:
            continue
        try:
            parts = with_slope(loss, logits, ids[:, frame].shape)
        except Skipped:
            return None
        whole = [torch.zeros(*ids.shape, part.shape[-1], dtype=torch.double) for part in parts]
        for full, part in zip(whole, parts, strict=True):
            full[:, frame] = part
        return whole[0], whole[1]
    return None


def _logits_among(subject: Subject, model: nn.Module, ids: Tensor, tensors: list[Tensor]) -> Tensor | None:
    """The first tensor that holds the logits of these tokens (B, T)."""
    with attempt() as attempted, torch.no_grad(), subject.quiet():
        expected = subject.run(Inputs(ids, labels=ids), model=model)
    if attempted.failed:  # it takes rows of another length
        return None
    for tensor in tensors:
        there = arrange(tensor.detach().cpu(), *ids.shape)
        if there is not None and alike(there, expected):
            return tensor
    return None
