"""Who may see whom by what an argument or the config declares: documents, prefixes and windows."""

import re
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.doctor.calling.docs import text_of
from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import DOCUMENTS, is_of_a_library, parameters_of
from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Status, Subject, attempt, finding, model_check
from clearhead.doctor.probes.attention import AttentionCall, attentions
from clearhead.doctor.probes.dependency import DependencyMatrix
from clearhead.doctor.probes.tracing import recorded_ops

PREFIX = re.compile(r"^(prefix|prompt)_?(len|length|size)s?$|^n_prefix$")
ISOLATED = re.compile(
    r"isolat|packed|block.diagonal|separate|(other|different|same|own) (doc|example|sample|seq)", re.I
)
WINDOWS = ("window", "sliding_window", "window_size", "attention_window", "local_window", "local_attention_window")
LONGEST = 80  # tokens: to see a window, rows must be longer


@model_check("M17", "regions", order=105, covers=("M16", "M18"), needs=SOUND, of_tokens=True)
def regions(subject: Subject) -> list[Finding]:
    """Documents, prefixes and windows that an argument or the config declares bound who sees whom."""
    names = [p.name for p in parameters_of(subject.model)] if not subject.convention.time_first else []
    answers = [_documents(subject, name) for name in names if DOCUMENTS.search(name)]
    answers += [_prefix(subject, name) for name in names if PREFIX.search(name) and subject.looks_back_only]
    answers += [_windows(subject)] if subject.looks_back_only and subject.spec.window is None else []
    if all(answer is None for answer in answers):
        raise Skipped("neither an argument nor its config declares documents, a prefix or a window")
    return [fault for answer in answers for fault in answer or []]


def _matrix(subject: Subject, name: str, make: Callable[[Inputs], object]) -> DependencyMatrix | None:
    """Who moves whom where the argument is what `make` makes for a batch; None if it takes no such thing."""
    with attempt() as attempted:
        return subject.dependencies(lambda inputs: subject.run(inputs, {name: make(inputs)}))
    subject.journal.untried(f"{name} given", attempted)
    return None


def _documents(subject: Subject, name: str) -> list[Finding] | None:
    """Two documents in a row, parted at either of two places, do not see each other."""
    T, findings = subject.calling.T, []
    for cut in (T // 2, T // 3):
        documents = (torch.arange(T) >= cut).long()
        matrix = _matrix(subject, name, lambda inputs, ids=documents: ids.expand(inputs.ids.shape).clone())  # type: ignore[misc]
        if matrix is None:
            return None
        crossing = matrix.influence * (documents[:, None] != documents)
        if not (crossing > matrix.threshold).any():
            subject.journal.paths.append(f"two documents in a row, given by {name}")
            return []
        witness = f"with {name} 0 before token {cut} and 1 from there on, "
        witness += matrix.witness(divmod(int(crossing.argmax()), T))
        is_sure = _is_meant_to_isolate(subject, documents, {name: documents.expand(2, T).clone()})
        status: Status = "fail" if is_sure else "warn"
        picture = matrix.picture((documents[:, None] == documents) & subject.matrix.alive)
        value, where = float(crossing.max()), subject.attention_place
        threshold = matrix.threshold
        findings = [
            finding("M17", witness, value=value, threshold=threshold, where=where, picture=picture, status=status)
        ]
    return findings


def _is_meant_to_isolate(subject: Subject, documents: Tensor, more: dict[str, Tensor]) -> bool:
    """Whether the code says so, or the argument has no effect at all, or hides one document in some attention."""
    inputs = subject.inputs(2)
    if ISOLATED.search(text_of(subject.original)) or torch.equal(subject.run(inputs, more), subject.run(inputs)):
        return True
    hidden = documents[:, None] > documents
    with recorded_ops() as operations:
        subject.run(inputs, more)
    maps = [attention.allowed for attention in attentions(operations.calls)]
    return any(allowed.shape == hidden.shape and not allowed[hidden].any() for allowed in maps)


def _prefix(subject: Subject, name: str) -> list[Finding] | None:
    """No token from the end of the prefix on moves an earlier one, wherever the prefix ends."""
    T, findings = subject.calling.T, []
    for n in (T // 3, T // 2):
        matrix = _matrix(subject, name, lambda _, n=n: n) or _matrix(  # type: ignore[misc]
            subject,
            name,
            lambda inputs, n=n: torch.full((len(inputs.ids),), n),  # type: ignore[misc]
        )
        if matrix is None:
            return None
        allowed = torch.ones(T, T).tril().bool() | (torch.arange(T) < n)
        leak = matrix.influence * ~allowed
        if not (leak > matrix.threshold).any():
            subject.journal.paths.append(f"a prefix of {n} tokens, given by {name}")
            return []
        witness = f"with {name}={n}, {matrix.witness(divmod(int(leak.argmax()), T))}"
        value, where, picture = float(leak.max()), subject.attention_place, matrix.picture(allowed)
        findings = [finding("M18", witness, value=value, threshold=matrix.threshold, where=where, picture=picture)]
    return findings


def _windows(subject: Subject) -> list[Finding] | None:
    """Layers that the config limits to a window are limited to it, and no others are."""
    settings, is_own = subject.settings, not is_of_a_library(type(subject.original))
    kinds = [str(kind) for kind in settings.get("layer_types") or []]
    name, window = _named_window(settings, kinds)
    T = max(subject.calling.T, window + 3) if is_own and not subject.is_hurried else subject.calling.T
    if not 1 < window < T - 1 or T > LONGEST:
        return None
    maps: list[AttentionCall] = []
    with attempt() as attempted:
        maps = list(attentions(subject.operations(subject.inputs(2, T=T))))
    maps = [attention for attention in maps if attention.allowed.shape == (T, T)]
    if not maps:
        if attempted.failed:
            subject.journal.untried(f"rows of {T} tokens, longer than {name}", attempted)
        return None
    reaches = [int(attention.allowed[-1].sum()) for attention in maps]
    limited = [any(word in kind for word in ("sliding", "local")) for kind in kinds]
    if len(limited) != len(maps) or not is_own:  # which layers it means is not said
        limited = [True] * len(maps) if all(reach == T for reach in reaches) else [reach < T for reach in reaches]
    subject.journal.paths.append(f"rows of {T} tokens, longer than {name}")
    for layer, (reach, is_limited) in enumerate(zip(reaches, limited, strict=True)):
        expected = window if is_limited else T
        if reach != expected:
            witness = f"token {T - 1} sees {reach} of {T} tokens in attention {layer}, and by {name}={window}"
            witness += f"{' and layer_types' if kinds else ''} it should see {expected}"
            is_sure = is_own and T in (reach, expected)  # some windows do not count the token itself
            where = subject.place_of(maps[layer].call)
            status: Status = "fail" if is_sure else "warn"
            return [finding("M16", witness, value=reach, threshold=expected, where=where, status=status)]
    return []


def _named_window(settings: dict[str, object], kinds: list[str]) -> tuple[str, int]:
    """The name and width of the window in the config; 0 if there is none, or it is switched off."""
    if settings.get("use_sliding_window") is False or not any("sliding" in kind for kind in kinds or ["sliding"]):
        return "", 0
    windows = ((name, settings.get(name)) for name in WINDOWS)
    return next(((name, size) for name, size in windows if isinstance(size, int) and size is not True), ("", 0))
