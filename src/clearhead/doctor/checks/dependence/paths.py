"""The same question on other code paths, and under larger scores: a leak on one of them alone is a leak."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from clearhead.doctor.calling.inputs import Inputs, Run, keep_filler
from clearhead.doctor.checks.base import SOUND, Skipped, finding, model_check
from clearhead.doctor.checks.dependence.backends import backends, with_attention
from clearhead.doctor.checks.dependence.causes import LEAK_FAULTS
from clearhead.doctor.checks.dependence.dependencies import leaks, reaches_back
from clearhead.doctor.checks.own_batch import leaks_on_own_batch
from clearhead.doctor.checks.padding.masks import padding_masks
from clearhead.doctor.probes.dependency import THRESHOLD, dependency, swapped_rows
from clearhead.doctor.probes.localization import locate, token_reading
from clearhead.doctor.probes.tracing import home_of, without_dropout
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.state_guard import SCALE, plain_layers, scaled, twin
from clearhead.doctor.subject import Subject

TRIES = 4  # of a path that may be random: a rare draw is not seen at once
LONGER = (37, 31, 29, 23, 19, 17)  # tokens


@model_check(
    "M02",
    "paths",
    order=130,
    covers=LEAK_FAULTS,
    holds="the dependencies are the same in training mode, with gradients, a mask of ones or the other attention, in "
    "longer rows, and on a batch that was given",
    needs=SOUND,
)
def paths(subject: Subject) -> list[Finding]:
    """Training mode, gradients on, a padding mask of ones, and each attention that transformers has for the model."""
    if not subject.looks_back_only:
        raise Skipped("it may look ahead")
    leaking = _through_batch_norm(subject)
    if leaking:
        return leaking
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
    """The future that reaches back on one path, in rows of T tokens. None where the path cannot be taken."""
    with attempt() as attempted, without_dropout():
        matrix = dependency(run, subject.inputs(T=T), subject.pool(), subject.generator(1))
    if attempted.failed:  # what a path asks for may not be there: the report's paths say which was not run
        if T == subject.calling.T:
            subject.journal.untried(name, attempted)
        return None
    if not matrix.influence.isfinite().all():
        return None
    leaky = bool(matrix.alive.triu(1).any())
    with without_dropout():
        is_random = leaky and _is_random(run, subject.inputs(T=T))
        subject.journal.paths.append(f"{name} (random by itself, so not judged)" if is_random else name)
        if not leaky or is_random:
            return []
        return leaks(subject, matrix, run, backend=name if subject.calling.T == T else None)


def _through_batch_norm(subject: Subject) -> list[Finding]:
    """In training a norm over the batch is one over time as well: what comes later in a row is in its mean."""
    norms = [(name, m) for name, m in subject.model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return []
    inputs = subject.inputs(2, salt=23)
    changed = inputs.ids.clone()
    changed[0, -1] = subject.inputs(2, salt=24).ids[1, 0]
    with torch.no_grad(), without_dropout():  # copies: training moves the running means
        before, after = (_trained_once(subject, batch) for batch in (inputs, replace(inputs, ids=changed)))
    value = float((after - before)[0, :-1].abs().max()) / (float(before.std()) or 1.0)
    if not value > THRESHOLD:
        return []
    subject.journal.paths.append("train(), with its norms over the batch")
    name, norm = norms[0]
    last = changed.shape[1] - 1
    witness = f"in train() another token {last} moves the logits before it, by {value:.1e} of their spread"
    where = Where(name, type(norm).__name__, *home_of(subject.model))
    return [finding((("N02", 0.8), ("N01", 0.2)), witness, value=value, threshold=THRESHOLD, where=where)]


def _trained_once(subject: Subject, inputs: Inputs) -> torch.Tensor:
    torch.manual_seed(subject.seed)  # what is drawn is drawn alike
    return subject.run(inputs, model=twin(subject.model, subject.device).train())


def _is_random(run: Run, inputs: Inputs) -> bool:
    """Whether equal inputs give unequal logits there, as with a router that is given noise in training."""
    first = run(inputs)
    return not all(torch.equal(run(inputs), first) for _ in range(TRIES))


def _long_rows(subject: Subject) -> list[Finding] | None:
    """Rows longer than a chunk or a window may be, as long as the model takes them; None if it takes none."""
    if subject.is_hurried:
        return None
    for T in LONGER:
        findings = leaks_on(subject, f"rows of {T} tokens", subject.run, T) if T > subject.calling.T else None
        if findings is not None:
            return findings
    return None


def _paths(subject: Subject) -> Iterator[tuple[str, Run]]:
    has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in subject.model.modules())
    if has_batch_norm:
        yield "with gradients", _with_gradients(subject)
    else:
        yield "train(), with gradients", _in_training(subject)
    if any(isinstance(m, (nn.TransformerEncoderLayer, nn.MultiheadAttention)) for m in subject.model.modules()):
        yield "torch's fused layers", _with_fused_layers(subject)
    for name, form, source in padding_masks(subject):
        if not source:
            yield f"{name} given", _with_mask(subject, name, form)
    choice = backends(subject)
    if choice is not None:
        current, other = choice
        yield f"{other} attention", with_attention(subject, other, current)


def _with_fused_layers(subject: Subject) -> Run:
    def run(inputs: Inputs) -> torch.Tensor:
        with torch.no_grad(), plain_layers(False):
            return subject.run(inputs)

    return run


def _with_gradients(subject: Subject) -> Run:
    def run(inputs: Inputs) -> torch.Tensor:
        with torch.enable_grad():
            return subject.run(inputs).detach()

    return run


def _in_training(subject: Subject) -> Run:
    run_with_gradients = _with_gradients(subject)

    def run(inputs: Inputs) -> torch.Tensor:
        with subject.training():
            return run_with_gradients(inputs)

    return run


def _with_mask(subject: Subject, name: str, form: str) -> Run:
    def run(inputs: Inputs) -> torch.Tensor:
        value = keep_filler(form, False)(inputs, subject.convention.time_first)
        return subject.convention.logits(subject.model, inputs, **{name: value})

    return run


@model_check(
    "M08", "stress", order=140, covers=("M08",), holds="the dependencies are the same with scores past 1e4", needs=SOUND
)
def stress(subject: Subject) -> list[Finding]:
    """Scores as large as training may make them: a mask that is only a large number is then outweighed."""
    if not subject.looks_back_only:
        raise Skipped("it may look ahead")
    with scaled(subject.model):
        matrix = dependency(subject.run, subject.inputs(), subject.pool(), subject.generator(1))
    if not matrix.influence.isfinite().all():
        raise Skipped("scaled weights overflow")
    future = matrix.influence.triu(1)
    if not (future > max(1e-3, matrix.threshold)).any():
        return []
    i, j = divmod(int(future.argmax()), len(future))
    base, changed, _ = swapped_rows(subject.inputs(), subject.pool(), subject.generator(1))
    with scaled(subject.model):
        where, _ = locate(subject.model, subject.run, base, changed, token_reading(subject.calling.T), reaches_back)
    witness = f"with matrices {SCALE:g} times as large, {matrix.witness((i, j))}"
    allowed = torch.ones_like(matrix.alive).tril()
    return [
        finding("M08", witness, value=float(future.max()), threshold=1e-3, where=where, picture=matrix.picture(allowed))
    ]
