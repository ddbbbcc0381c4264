"""The same question on other code paths, and under larger scores: a leak on one of them alone is a leak."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from clearhead.doctor.borrow import LOUDER, louder, plain_layers, twin
from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.checks.dependence.backends import backends, with_attention
from clearhead.doctor.checks.dependence.dependencies import leaks, reaches_back
from clearhead.doctor.checks.own_batch import leaks_on_own_batch
from clearhead.doctor.checks.padding.paddings import padding_masks
from clearhead.doctor.conventions.inputs import Inputs, Run, keep_filler
from clearhead.doctor.instruments.dependency import THRESHOLD, dependency, swapped_rows
from clearhead.doctor.instruments.localisation import locate, token_reading
from clearhead.doctor.instruments.tracing import home_of, without_dropout
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding, Where

TRIES = 4  # of a path that may be random: a rare draw is not seen at once
LONGER = (37, 31, 29, 23, 19, 17)  # tokens


def paths(patient: Patient) -> list[Finding]:
    """Training mode, gradients on, a padding mask of ones, and each attention that transformers has for the model."""
    if not patient.looks_back_only:
        raise Skipped("it may look ahead")
    leaking = _through_batch_norm(patient)
    if leaking:
        return leaking
    for name, run in _paths(patient):
        found = leaks_on(patient, name, run, patient.found.T)
        if found:
            return found
    return _long_rows(patient) or leaks_on_own_batch(patient)


def leaks_on(patient: Patient, name: str, run: Run, T: int) -> list[Finding] | None:
    """The future that reaches back on one path, in rows of T tokens. None where the path cannot be taken."""
    try:
        with without_dropout():
            matrix = dependency(run, patient.inputs(T=T), patient.pool(), patient.generator(1))
    except Exception:
        return None
    if not matrix.influence.isfinite().all():
        return None
    patient.paths.append(name)
    if not matrix.alive.triu(1).any():
        return []
    with without_dropout():
        if _is_random(run, patient.inputs(T=T)):
            patient.paths[-1] += " (random by itself, so not judged)"
            return []
        return leaks(patient, matrix, run, backend=name if patient.found.T == T else None)


def _through_batch_norm(patient: Patient) -> list[Finding]:
    """In training a norm over the batch is one over time as well: what comes later in a row is in its mean."""
    norms = [(name, m) for name, m in patient.model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return []
    inputs = patient.inputs(2, salt=23)
    changed = inputs.ids.clone()
    changed[0, -1] = patient.inputs(2, salt=24).ids[1, 0]
    with torch.no_grad(), without_dropout():  # copies: training moves the running means
        before, after = (_trained_once(patient, given) for given in (inputs, replace(inputs, ids=changed)))
    value = float((after - before)[0, :-1].abs().max()) / (float(before.std()) or 1.0)
    if not value > THRESHOLD:
        return []
    patient.paths.append("train(), with its norms over the batch")
    name, norm = norms[0]
    last = changed.shape[1] - 1
    witness = f"in train() another token {last} moves the logits before it, by {value:.1e} of their spread"
    where = Where(name, type(norm).__name__, *home_of(patient.model))
    return [finding((("N02", 0.8), ("N01", 0.2)), witness, value=value, threshold=THRESHOLD, where=where)]


def _trained_once(patient: Patient, inputs: Inputs) -> torch.Tensor:
    torch.manual_seed(patient.seed)  # what is drawn is drawn alike
    return patient.run(inputs, model=twin(patient.model, patient.device).train())


def _is_random(run: Run, inputs: Inputs) -> bool:
    """Whether equal inputs give unequal logits there, as with a router that is given noise in training."""
    first = run(inputs)
    return not all(torch.equal(run(inputs), first) for _ in range(TRIES))


def _long_rows(patient: Patient) -> list[Finding]:
    """Rows longer than a chunk or a window may be, as long as the model takes them."""
    if patient.is_hurried:
        return []
    for T in LONGER:
        found = leaks_on(patient, f"rows of {T} tokens", patient.run, T) if T > patient.found.T else None
        if found is not None:
            return found
    return []


def _paths(patient: Patient) -> Iterator[tuple[str, Run]]:
    has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in patient.model.modules())
    if has_batch_norm:
        yield "with gradients", _with_gradients(patient)
    else:
        yield "train(), with gradients", _in_training(patient)
    if any(isinstance(m, (nn.TransformerEncoderLayer, nn.MultiheadAttention)) for m in patient.model.modules()):
        yield "torch's fused layers", _with_fused_layers(patient)
    for name, form, source in padding_masks(patient):
        if not source:
            yield f"{name} given", _with_mask(patient, name, form)
    choice = backends(patient)
    if choice is not None:
        current, other = choice
        yield f"{other} attention", with_attention(patient, other, current)


def _with_fused_layers(patient: Patient) -> Run:
    def run(inputs: Inputs) -> torch.Tensor:
        with torch.no_grad(), plain_layers(False):
            return patient.run(inputs)

    return run


def _with_gradients(patient: Patient) -> Run:
    def run(inputs: Inputs) -> torch.Tensor:
        with torch.enable_grad():
            return patient.run(inputs).detach()

    return run


def _in_training(patient: Patient) -> Run:
    run_with_gradients = _with_gradients(patient)

    def run(inputs: Inputs) -> torch.Tensor:
        with patient.training():
            return run_with_gradients(inputs)

    return run


def _with_mask(patient: Patient, name: str, form: str) -> Run:
    def run(inputs: Inputs) -> torch.Tensor:
        value = keep_filler(form, False)(inputs, patient.convention.time_first)
        return patient.convention.logits(patient.model, inputs, **{name: value})

    return run


def stress(patient: Patient) -> list[Finding]:
    """Scores as large as training may make them: a mask that is only a large number is then outweighed."""
    if not patient.looks_back_only:
        raise Skipped("it may look ahead")
    with louder(patient.model):
        matrix = dependency(patient.run, patient.inputs(), patient.pool(), patient.generator(1))
    if not matrix.influence.isfinite().all():
        raise Skipped("louder weights overflow")
    future = matrix.influence.triu(1)
    if not (future > max(1e-3, matrix.threshold)).any():
        return []
    i, j = divmod(int(future.argmax()), len(future))
    base, changed, _ = swapped_rows(patient.inputs(), patient.pool(), patient.generator(1))
    with louder(patient.model):
        where, _ = locate(patient.model, patient.run, base, changed, token_reading(patient.found.T), reaches_back)
    witness = f"with matrices {LOUDER:g} times as large, {matrix.witness((i, j))}"
    allowed = torch.ones_like(matrix.alive).tril()
    return [
        finding("M08", witness, value=float(future.max()), threshold=1e-3, where=where, picture=matrix.picture(allowed))
    ]
