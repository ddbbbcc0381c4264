"""Which token may move which logit, against what the model is meant to be."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.checks.base import BASE, Causes, finding, model_check
from clearhead.doctor.checks.dependence.backends import backends, with_attention
from clearhead.doctor.checks.dependence.causes import LEAK_FAULTS, leak_causes
from clearhead.doctor.checks.locations import attention_place, place_of
from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.dependency import DependencyMatrix, dependency, shape_of, swapped_rows
from clearhead.doctor.probes.localization import first_guilty, locate, token_reading
from clearhead.doctor.probes.tracing import ModuleCall, recorded_ops
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.spec import Assumption
from clearhead.doctor.subject import Subject

DEPENDENCY_FAULTS = (*LEAK_FAULTS, "A12", "A13", "M07", "M14", "M16", "N04", "S03", "I06")

WINDOWS = ("window", "sliding_window", "window_size", "attention_window", "local_window", "local_attention_window")


@model_check(
    "M01",
    "dependencies",
    order=100,
    covers=DEPENDENCY_FAULTS,
    holds="each logit depends on the tokens that it should, and on no other",
    needs=(*BASE, "layouts", "norms"),
)
def dependencies(subject: Subject) -> list[Finding]:
    """Causal: no logit depends on a later token, and each on all that its window holds. Bidirectional: on all."""
    shape, _ = shape_of(subject.matrix.alive)
    if shape == "deaf":
        return [finding((("A12", 0.5), ("I06", 0.3), ("M07", 0.2)), "no token moves any logit", value=0.0)]
    if subject.looks_back_only:
        return leaks(subject, subject.matrix, subject.run) or _gaps(subject, subject.matrix)
    return _one_sided(subject, subject.matrix)


def leaks(subject: Subject, matrix: DependencyMatrix, run: Run, *, backend: str | None = None) -> list[Finding]:
    """The future that reaches back, where it does first, and why. With a backend, on that path alone."""
    future = matrix.influence.triu(1)
    future_reached = matrix.alive.triu(1)
    if not future_reached.any():
        return _faint(subject, matrix)
    i, j = divmod(int(future.argmax()), len(future))
    inputs = subject.inputs(T=len(matrix.ids))
    base, changed, _ = swapped_rows(inputs, subject.pool(), subject.generator(1))
    where, causes = _locate_leak(subject, run, base, changed)
    backend = backend or _only_backend(subject, base) or _only_in_evaluation(subject, base)
    if backend:
        where = Where(**(vars(where) | {"backend": backend}))
        causes = (("M02", 0.9), *((id, 0.1 * score) for id, score in causes))
    allowed = torch.ones_like(matrix.alive).tril()
    return [
        finding(
            causes,
            matrix.witness((i, j)),
            value=float(future.max()),
            threshold=matrix.threshold,
            floor=matrix.floor,
            where=where,
            picture=matrix.picture(allowed),
        )
    ]


def _only_backend(subject: Subject, base: Inputs) -> str | None:
    """The attention in use, if the model has another one that leaks nothing."""
    choice = backends(subject)
    if choice is None:
        return None
    current, other = choice
    row, run = base.rows(torch.tensor([0])), with_attention(subject, other, current)
    with attempt() as attempted:
        matrix = dependency(run, row, subject.pool(), subject.generator(1))
    if attempted.failed:  # it has no other one after all
        return None
    is_sound = bool(matrix.influence.isfinite().all()) and not bool(matrix.alive.triu(1).any())
    return f"{current} attention" if is_sound else None


def _only_in_evaluation(subject: Subject, base: Inputs) -> str | None:
    """Evaluation, if nothing leaks in training mode: a mask that is given in one of them only."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in subject.model.modules()):
        return None
    with attempt() as attempted, subject.training(), subject.quiet():
        matrix = dependency(subject.run, base.rows(torch.tensor([0])), subject.pool(), subject.generator(1))
    if attempted.failed:  # it wants something else in training
        return None
    is_sound = bool(matrix.influence.isfinite().all()) and not bool(matrix.alive.triu(1).any())
    return "eval()" if is_sound and bool(matrix.alive.any()) else None


def reaches_back(alive: Tensor) -> bool:
    """Whether a token moves an earlier position."""
    return bool(alive.triu(1).any())


def _locate_leak(subject: Subject, run: Run, base: Inputs, changed: Inputs) -> tuple[Where, Causes]:
    where, call = locate(subject.model, run, base, changed, token_reading(base.ids.shape[1]), reaches_back)
    with torch.no_grad(), recorded_ops() as ops:
        run(base)
    op = _operation(run, changed, ops.calls)
    return where, leak_causes(call.module if call else None, op, ops.calls)


def _operation(run: Run, changed: Inputs, ops: Sequence[ModuleCall]) -> ModuleCall | None:
    """The first operation that lets the future through, as it was in the pass with equal rows."""
    with torch.no_grad(), recorded_ops() as second:
        run(changed)
    guilty = first_guilty(ops, second.calls, token_reading(changed.ids.shape[1]), reaches_back)
    return None if guilty is None else ops[next(k for k, call in enumerate(second.calls) if call is guilty)]


def _faint(subject: Subject, matrix: DependencyMatrix) -> list[Finding]:
    """A change below the threshold: real if it is there in float64 too, where numbers differ by 1e-16."""
    if not matrix.influence.triu(1).any() or matrix.floor:
        return []
    with attempt() as attempted, subject.precise():
        exact = dependency(subject.run, subject.inputs(), subject.pool(), subject.generator(1))
    if attempted.failed:  # some operations and devices know no float64: a tie-breaker, never a verdict by itself
        return []
    future = exact.influence.triu(1)
    if not future.isfinite().all() or float(future.max()) < 1e-9:
        return []
    i, j = divmod(int(future.argmax()), len(future))
    return [finding((("M08", 0.5), ("M19", 0.5)), exact.witness((i, j)), value=float(future.max()), threshold=1e-9)]


def _gaps(subject: Subject, matrix: DependencyMatrix) -> list[Finding]:
    shape, number = shape_of(matrix.alive)
    allowed = torch.ones_like(matrix.alive).tril()
    window = subject.spec.window
    if window is not None and window < len(allowed):
        allowed = allowed.triu(1 - window)
        reach = number if shape == "window" else len(allowed)
        n_layers = max(1, len(_attentions(subject)))
        if shape in ("window", "causal") and reach != min(len(allowed), (window - 1) * n_layers + 1):
            witness = f"tokens reach {reach} positions far, declared is a window of {window} in {n_layers} layers"
            return [finding("M16", witness, value=reach, threshold=window, picture=matrix.picture(allowed))]
        return []
    if shape == "alone":
        where = attention_place(subject)
        if where == Where():
            return []  # nothing in it is meant to mix tokens: a table of pairs
        isolated = (("A12", 0.6), ("M04", 0.2), ("A13", 0.2))
        witness = "no token but its own moves any logit"
        return [finding(isolated, witness, value=0.0, where=where, picture=matrix.picture(allowed))]
    if shape == "strict":
        maps = _attentions(subject)
        blind = _blind(maps)
        if maps and blind is None:
            reason = "no token moves its own logits, and no attention hides a token from itself"
            shifted = Assumption("its rows", "shifted by one before the first layer", (reason,))
            subject.journal.assumptions.append(shifted)
            return []
        witness = "changing token 1 leaves logits 1 as they are, to the last bit"
        causes = (("M07", 0.7), ("N04", 0.3))
        where = attention_place(subject) if blind is None else place_of(subject, blind.call)
        return [finding(causes, witness, value=0.0, where=where, picture=matrix.picture(allowed))]
    if shape == "gaps" and not matrix.alive.diagonal().all():
        i = int((~matrix.alive.diagonal()).nonzero()[0])
        witness = f"changing token {i} leaves logits {i} as they are, while other tokens move theirs"
        return [
            finding((("M07", 0.5), ("N04", 0.5)), witness, value=0.0, status="warn", picture=matrix.picture(allowed))
        ]
    return _blind_to_itself(subject) + _window_forgotten(subject, len(matrix.alive))


def _attentions(subject: Subject) -> list[AttentionCall]:
    """Those of tokens to the tokens of their own row."""
    T = subject.calling.T
    return [attention for attention in attentions(subject.inside.calls) if attention.allowed.shape == (T, T)]


def _blind(maps: Sequence[AttentionCall]) -> AttentionCall | None:
    """The first that hides tokens from themselves; the first token may have nobody else."""
    return next((attention for attention in maps if not attention.allowed.diagonal()[1:].any()), None)


def _blind_to_itself(subject: Subject) -> list[Finding]:
    """What the residual stream covers up: in an attention, tokens see those just before them and not themselves."""
    blind = _blind(_attentions(subject))
    if blind is None or not blind.allowed.diagonal(-1).all():
        return []
    T = len(blind.allowed)
    witness = f"in the attention, token {T - 1} sees token {T - 2} and not itself"
    return [finding("M07", witness, value=0.0, where=place_of(subject, blind.call), status="warn")]


def _window_forgotten(subject: Subject, T: int) -> list[Finding]:
    """The config names a window that is narrower than these rows, and no attention looks less far than they are."""
    name, window = _named_window(subject)
    if subject.spec.window is not None or not 1 < window < T - 1:
        return []
    maps = _attentions(subject)
    if not maps or any(bool((~attention.allowed).tril().any()) for attention in maps):
        return []
    witness = f"the config says {name}={window}, and token {T - 1} sees all {T} tokens in every layer"
    where = place_of(subject, maps[0].call)
    return [finding("M16", witness, value=T, threshold=window, where=where, status="warn")]


def _named_window(subject: Subject) -> tuple[str, int]:
    """What the config calls the window, and how wide it is; 0 where there is none, or it is switched off."""
    config = getattr(subject.original, "config", None)
    settings = vars(config) if hasattr(config, "__dict__") else {}
    if settings.get("use_sliding_window") is False or not any(
        "sliding" in kind for kind in settings.get("layer_types") or ["sliding"]
    ):
        return "", 0
    windows = (
        (name, settings[name]) for name in WINDOWS if isinstance(settings.get(name), int) and settings[name] is not True
    )
    return next(windows, ("", 0))


def _one_sided(subject: Subject, matrix: DependencyMatrix) -> list[Finding]:
    shape, _ = shape_of(matrix.alive)
    full = torch.ones_like(matrix.alive)
    picture = matrix.picture(full)
    if shape in ("causal", "window", "strict", "gaps"):
        witness = f"changing token {len(full) - 1} moves no logits before it, in a model that is to look both ways"
        return [finding("S03", witness, value=0.0, where=attention_place(subject), picture=picture)]
    if shape == "alone":
        witness = "no token but its own moves any logit"
        causes = (("A12", 0.7), ("A13", 0.3))
        return [finding(causes, witness, value=0.0, where=attention_place(subject), picture=picture)]
    if shape == "reversed":
        where = attention_place(subject)
        return [finding("M04", "no token moves a logit after it", value=0.0, where=where, picture=picture)]
    return []
