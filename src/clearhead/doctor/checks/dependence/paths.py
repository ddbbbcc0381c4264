"""The same question on other code paths, with larger scores and in longer rows: each may leak alone."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.checks.dependence.causes import LEAK_FAULTS
from clearhead.doctor.checks.dependence.dependencies import (
    has_batch_norm,
    leaks,
    other_attention,
    reaches_back,
    run_in_training,
)
from clearhead.doctor.checks.own_batch import leaks_on_own_batch
from clearhead.doctor.checks.padding.masks import padding_masks
from clearhead.doctor.probes.attention import HIDDEN
from clearhead.doctor.probes.localization import locate, token_reading
from clearhead.doctor.state_guard import SCALE, plain_layers, scaled

TRIES = 4  # of a path that may be random: a rare draw does not show at once
LONGER = (37, 31, 29, 23, 19, 17)  # tokens
PLAUSIBLE = 1e3, -HIDDEN  # scores that a trained model reaches, and those that only a broken one does


@model_check("M02", "paths", order=130, covers=LEAK_FAULTS, needs=SOUND)
def paths(subject: Subject) -> list[Finding]:
    """No future token leaks in train(), with gradients, a full mask, another attention, longer rows or your batch."""
    if not subject.looks_back_only:
        raise Skipped("it may look ahead")
    findings: list[list[Finding] | None] = []
    for name, run in _paths(subject):
        findings.append(leaks_on(subject, name, run, subject.calling.T))
        if findings[-1]:
            return findings[-1]
    findings.append(_long_rows(subject))
    if all(fault is None for fault in findings) and subject.own is None:
        raise Skipped("no path but that of one call in eval() could be run")
    return findings[-1] or leaks_on_own_batch(subject)


def leaks_on(subject: Subject, name: str, run: Run, T: int) -> list[Finding] | None:
    """Future tokens that reach past positions on one path, in rows of T tokens. None if the path cannot be run."""
    with attempt() as attempted:
        matrix = subject.dependencies(run, T)
    if attempted.failed:  # what a path needs may not be there: the report lists the paths that were not run
        if T == subject.calling.T:
            subject.journal.untried(name, attempted)
        return None
    if not matrix.influence.isfinite().all():
        return None
    leaky = reaches_back(matrix.alive)
    is_random = leaky and _is_random(run, subject.inputs(T=T))
    subject.journal.paths.append(f"{name} (random by itself, so not judged)" if is_random else name)
    if not leaky or is_random:
        return []
    return leaks(subject, matrix, run, backend=name if subject.calling.T == T else None)


def _is_random(run: Run, inputs: Inputs) -> bool:
    """Whether equal inputs give different logits there, as with a router that is given noise in training."""
    first = run(inputs)
    return not all(torch.equal(run(inputs), first) for _ in range(TRIES))


def _long_rows(subject: Subject) -> list[Finding] | None:
    """Rows longer than a chunk or a window may be, as long as the model takes them; None if it takes none."""
    for T in LONGER if not subject.is_hurried else ():
        findings = leaks_on(subject, f"rows of {T} tokens", subject.run, T) if T > subject.calling.T else None
        if findings is not None:
            return findings
    return None


def _paths(subject: Subject) -> Iterator[tuple[str, Run]]:
    def with_gradients(inputs: Inputs) -> Tensor:
        return subject.run(inputs, graph=True).detach()

    def with_fused_layers(inputs: Inputs) -> Tensor:
        with plain_layers(False):
            return subject.run(inputs)

    in_training = partial(run_in_training, subject, graph=True)
    yield ("with gradients", with_gradients) if has_batch_norm(subject) else ("train(), with gradients", in_training)
    if any(isinstance(m, (nn.TransformerEncoderLayer, nn.MultiheadAttention)) for m in subject.model.modules()):
        yield "torch's fused layers", with_fused_layers
    for mask in padding_masks(subject):
        if not mask.source:
            yield f"{mask.names[0]} given", mask.run
    choice = other_attention(subject)
    if choice is not None:
        yield f"{choice[1]} attention", choice[2]


@model_check("M08", "stress", order=140, needs=SOUND)
def stress(subject: Subject) -> list[Finding]:
    """No future token leaks when scores exceed 1e4, where a mask that is only a large number is outweighed."""
    if not subject.looks_back_only:
        raise Skipped("it may look ahead")
    weakest = min((a.strength for a in subject.attentions if a.strength is not None), default=0.0)
    if weakest > PLAUSIBLE[1]:
        return []
    T, reading = subject.calling.T, token_reading(subject.calling.T)
    with scaled(subject.model):
        matrix = subject.dependencies(subject.run)
        future = matrix.influence.triu(1)
        if not matrix.influence.isfinite().all():
            raise Skipped("scaled weights overflow")
        if not (future > max(1e-3, matrix.threshold)).any():
            return []
        where = locate(subject.model, subject.run, *subject.swapped(), reading, reaches_back).where
    witness = f"with matrices {SCALE:g} times as large, {matrix.witness(divmod(int(future.argmax()), T))}"
    picture = matrix.picture(torch.ones_like(matrix.alive).tril())
    second = f"a mask of {-weakest:g}, which scores of trained models reach" if weakest < PLAUSIBLE[0] else ""
    value = float(future.max())
    return [finding("M08", witness, value=value, threshold=1e-3, where=where, picture=picture, second=second)]
