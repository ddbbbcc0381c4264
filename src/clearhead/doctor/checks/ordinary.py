"""What a person does with a model next: a backward pass, targets, a shorter text. None of it raises an error."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import torch

from clearhead.doctor.calling.names import LABELS, POSITIONS, parameters_of
from clearhead.doctor.checks.base import Finding, Subject, attempt, finding, model_check
from clearhead.doctor.checks.generation.writers import writers_of
from clearhead.doctor.checks.parts.effects import TARGETS
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.mentions import is_set_beside
from clearhead.doctor.state_guard import in_training

NUMBER = re.compile(r"\d+")
IN_PLACE = re.compile(r"in-?place operation|modified inplace")
NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")
VIEW = re.compile("view size is not compatible with input tensor's size and stride")
PROMPT = 3  # tokens


@model_check("V03", "ordinary calls", order=255, needs=("finite",))
def ordinary_calls(subject: Subject) -> list[Finding]:
    """A backward pass, targets and a prompt raise no error."""
    for witness, second in (*_in_training(subject), *_given_targets(subject), *_behind_a_prompt(subject)):
        return [finding("V03", witness, where=place_of_module("", subject.model), second=second)]
    return []


def _in_training(subject: Subject) -> Iterator[tuple[str, str]]:
    """In train() gradients can be computed, in float32 or under autocast, whose casts are copies."""
    weights, sentence = [p for p in subject.fresh.parameters() if p.requires_grad], ""
    stage = "a call"
    for context in (nullcontext(), torch.autocast(subject.device.type, torch.bfloat16)):
        with in_training(subject.fresh), attempt() as attempted, context:
            logits = subject.convention.logits(subject.fresh, subject.inputs(subject.convention.at_once or 3))
            if not logits.requires_grad:
                return
            stage = "the backward pass"
            torch.autograd.grad(logits.float().sum(), weights, allow_unused=True)
        if not attempted.failed or not IN_PLACE.search(str(attempted.error)):
            return
        sentence = sentence or attempted.sentence(300)
    yield f"in train() {stage} raises {sentence}", "the same error under autocast"


def _given_targets(subject: Subject) -> Iterator[tuple[str, str]]:
    """With targets, whatever their form, forward asks for no name that is nowhere set, and views what can be viewed."""
    names = [p.name for p in parameters_of(subject.model) if p.default is None and LABELS.search(p.name)]
    names = [name for name in names if not POSITIONS.search(name) and not name.endswith(("mask", "masks"))]
    names = [name for name in names if name not in dict(subject.convention.call)]
    classes, sentence = {type(module).__name__ for module in subject.model.modules()}, ""
    for fillers in product(TARGETS, repeat=len(names)) if 0 < len(names) < 3 else ():
        call = (*subject.convention.call, *zip(names, fillers, strict=True))
        with attempt() as attempted:
            replace(subject.convention, call=call).raw(subject.model, subject.inputs(3))
        if VIEW.search(str(attempted.error)):  # whatever the targets are
            yield f"given {' and '.join(names)}, forward raises {attempted.sentence(300)}", "targets of any kind"
            return
        missed = NO_ATTRIBUTE.search(str(attempted.error)) if isinstance(attempted.error, AttributeError) else None
        is_own = missed is not None and missed[1] in classes and not is_set_beside(subject.original, missed[2])
        if not (isinstance(attempted.error, NameError) or is_own):
            return
        sentence = attempted.sentence(300)
    if sentence:
        forms = "of each token or of each row"
        yield f"given {' and '.join(names)}, {forms}, forward raises {sentence}", "the other form of the targets"


def _behind_a_prompt(subject: Subject) -> Iterator[tuple[str, str]]:
    """What writes tokens behind rows can begin with fewer tokens than rows of one length.

    An error counts that forward raises with short rows by itself: any other may be a wrong call, or a wish of its own.
    """
    T, lengths = subject.calling.T, {1, PROMPT, subject.calling.T // 2, subject.calling.T - 1}
    if subject.gives_rows or subject.convention.has_source or not subject.convention.reads_words("ids"):
        return
    errors = list[str]()
    for n in sorted(lengths):
        with attempt() as attempted:
            subject.run(subject.inputs(2, T=n))
        if not attempted.failed:
            return
        errors.append(NUMBER.sub("", attempted.sentence(100)))
    for writer in writers_of(subject):
        with attempt() as attempted:
            writer.write(subject.model, subject.inputs(1, T=PROMPT), 2, writer.greedy)
        if attempted.failed and NUMBER.sub("", attempted.sentence(100)) in errors:
            witness = f"{writer.name}() raises {attempted.sentence(100)} behind a prompt of {PROMPT} tokens"
            tried = ", ".join(map(str, sorted(lengths)))
            yield f"{witness}, as forward does with rows of {tried}; {T} work", "forward with those rows"
