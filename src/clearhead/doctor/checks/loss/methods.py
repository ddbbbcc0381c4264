"""A loss that a model computes in a method beside `forward`."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import LABELS, TOKENS, is_of_a_library
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Subject, Where, attempt, model_check
from clearhead.doctor.checks.loss.losses import LOSS_FAULTS
from clearhead.doctor.checks.loss.scoring import MARKS, LossXray, half_padded, judged_by_own_mark, quieter, xray_of_call
from clearhead.doctor.checks.padding.masks import knows_padding
from clearhead.doctor.state_guard import twin

CALLED = re.compile(  # not what is added to a loss: that of a balance, of a reconstruction
    r"^((compute|calc|calculate|get|forward|step|batch|sequence|train|training)_"
    r"|(lm|language_model|next_token|token|ce|cross_entropy|nll)_)?loss(_fn|_function|_on_batch)?$|^train(ing)?_step$",
    re.I,
)
BATCH = re.compile(r"^(batch|data|samples?)$")  # what holds inputs and targets
NUMBER = re.compile(r"(^|_)(idx|index|nb|no|step)$")  # of the batch
NAMES = (("input_ids", "ids", "tokens", "inputs", "x"), ("labels", "targets", "target", "y"))
FRAMES = (slice(None), slice(None, -1), slice(1, None))  # the part of a row that the model is given


@model_check("D02", "loss methods", order=230, covers=LOSS_FAULTS, needs=STEADY, of_tokens=True)
def loss_methods(subject: Subject) -> list[Finding]:
    """The loss that a method beside forward computes is a cross-entropy of the right targets."""
    of_next = subject.kind == "causal" and not subject.shifts_its_rows
    if not of_next or subject.convention.time_first or subject.convention.has_source:
        raise Skipped("only methods of models that predict the next token are examined")
    for method in _methods(type(subject.original)):
        findings = _judged(subject, method)
        if findings is not None:
            return findings
    raise Skipped("it has no method that computes a loss from tokens")


def _methods(cls: type) -> Iterator[Callable[..., object]]:
    """Those of the person's own class that need tokens alone, or tokens and targets."""
    own = [] if is_of_a_library(cls) else inspect.getmembers(cls, inspect.isfunction)
    for name, method in own:
        needed = _needed(method)
        is_own = CALLED.search(name) and method.__module__ == cls.__module__
        if is_own and 0 < len(needed) < 3 and TOKENS.search(needed[0]) and _styles(*needed):
            yield method


class CallStyle(NamedTuple):
    """How a method is given tokens and targets (B, T); `alone`: the tokens are its targets as well."""

    alone: bool
    arguments: Callable[[Tensor, Tensor], tuple[object, ...]]


def _styles(first: str, second: str | None = None) -> list[CallStyle]:
    """Those that the names of what it needs allow."""
    if second is not None and LABELS.search(second):
        return [CallStyle(False, lambda ids, labels: (ids, labels))]
    if second is not None and not NUMBER.search(second):
        return []
    more = () if second is None else (0,)
    styles = [CallStyle(True, lambda ids, labels: (ids, *more))]
    if BATCH.search(first):
        inputs, targets = NAMES
        styles.append(CallStyle(False, lambda ids, labels: ((ids, labels), *more)))
        styles.append(
            CallStyle(False, lambda ids, labels: (dict.fromkeys(inputs, ids) | dict.fromkeys(targets, labels), *more))
        )
    return styles


def _needed(method: Callable[..., object]) -> list[str]:
    """The parameters that it needs beside the model."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variable]


def _judged(subject: Subject, method: Callable[..., object]) -> list[Finding] | None:
    """The faults in what it asks for; None if it cannot be called, or its logits are not to be found."""
    model = twin(quieter(subject), subject.device)  # it may well take a step with it
    pad = subject.pad_id if knows_padding(subject) else None
    for style in _styles(*_needed(method)):
        read = partial(_read, subject, model, method, style)
        for mark in (pad,) if style.alone else (*MARKS, pad):
            with attempt() as attempted:
                result = read(mark)
            if attempted.failed:  # it takes something else
                continue
            subject.journal.paths.append(f"{method.__name__}()")
            code = method.__code__
            where = Where("", type(subject.original).__name__, code.co_filename, code.co_firstlineno)
            if style.alone:
                findings = result.judged(subject, mark=mark, shifts=True)
            else:
                findings = judged_by_own_mark(subject, result, mark, read)
            return [replace(fault, where=where) for fault in findings]
    return None


def _read(
    subject: Subject, model: nn.Module, method: Callable[..., object], style: CallStyle, mark: int | None
) -> LossXray:
    """What it asks for if the second half of a row is marked."""
    ids, labels = subject.inputs(3, salt=9).ids, subject.inputs(3, salt=10).ids
    labels = half_padded(subject, ids if style.alone else labels, mark)
    ids = labels if style.alone else ids
    call = partial(method, model, *style.arguments(ids.clone(), labels.clone()))
    return xray_of_call(subject, model, call, Inputs(ids, labels=ids), labels, FRAMES)
