"""Which token may move which logit, compared with the kind of model it is meant to be."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.docs import keeps_what_is_true
from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.calling.settings import setting
from clearhead.doctor.checks.base import APART, Finding, Skipped, Subject, Where, attempt, finding, model_check
from clearhead.doctor.checks.dependence.causes import LEAK_FAULTS, leak_causes
from clearhead.doctor.probes.attention import AttentionCall
from clearhead.doctor.probes.dependency import DependencyMatrix, shape_of
from clearhead.doctor.probes.localization import locate, token_reading
from clearhead.doctor.probes.masking import causally_masked
from clearhead.doctor.spec import Assumption

MUCH = "the size of the move: a mask that works lets a thousandth through at most"
LOST = "an attention that looks at other tokens"
FAINT = 1e-3  # of the largest move: more than what is left of weights that were hidden
DEPENDENCY_FAULTS = (*LEAK_FAULTS, "A12", "A13", "M07", "M14", "M16", "N04", "S03", "I06")


@model_check("M01", "dependencies", order=100, covers=DEPENDENCY_FAULTS, needs=APART)
def dependencies(subject: Subject) -> list[Finding]:
    """Each logit depends on the tokens that it should depend on, and on no others."""
    shape, _ = shape_of(subject.matrix.alive)
    if subject.matrix.threshold >= 1:
        raise Skipped("rows move one another as much as their own tokens move them")
    if shape == "deaf" and subject.is_seeded:
        raise Skipped("what was taken for its logits may be what it draws at random")
    if shape == "deaf":
        causes, witness, second = (("A12", 0.5), ("I06", 0.3), ("M07", 0.2)), "no token moves any logit", ""
        if subject.convention.has_source and subject.source_matrix.alive.any():
            causes, second = (("A13", 0.6), ("A12", 0.2), ("S02", 0.2)), "the source, whose tokens move them"
            witness = "no token of the target moves any logit: the decoder does not read it"
        return [finding(causes, witness, value=0.0, second=second or _lost_attention(subject))]
    is_bigram = subject.looks_back_only and (subject.spec.window == 1 or subject.attention_place == Where())
    if shape == "alone" and not is_bigram and not _only_asks(subject):
        causes, witness = (("A12", 0.6), ("M04", 0.2), ("A13", 0.2)), "each logit depends on its own token alone"
        legal = torch.ones_like(subject.matrix.alive)
        picture = subject.matrix.picture(legal.tril() if subject.looks_back_only else legal)
        where, second = subject.attention_place, _lost_attention(subject)
        return [finding(causes, witness, value=0.0, where=where, picture=picture, second=second)]
    if subject.looks_back_only:
        findings = leaks(subject, subject.matrix, subject.run) or _gaps(subject, subject.matrix)
        return findings + _turned_round(subject)
    return _one_sided(subject, subject.matrix)


def _lost_attention(subject: Subject) -> str:
    """An attention that looks at other tokens, where words come out: then its output is lost.

    Else it may read something else, or give something else beside its loss, such as what it remembers.
    """
    if subject.convention.reads_words("ids") and subject.inside.logits.shape[-1] != subject.calling.vocab_size:
        return ""
    maps = (attention.allowed for attention in subject.attentions if len({*attention.allowed.shape}) == 1)
    return LOST if any(int(allowed.sum()) > int(allowed.diagonal().sum()) for allowed in maps) else ""


def _only_asks(subject: Subject) -> bool:
    """Whether its vectors are queries to a source, which are not meant to meet: no attention is among as many."""
    sizes = range(subject.calling.T, subject.calling.T + 3)  # one or two may be put in front
    among = any(len({*maps.allowed.shape}) == 1 and len(maps.allowed) in sizes for maps in subject.attentions)
    return subject.convention.has_source and not subject.convention.reads_words("ids") and not among


def _turned_round(subject: Subject) -> list[Finding]:
    """A mask that hides the future only in the polarity opposite to what the code says of it."""
    findings = []
    for name, filler in subject.convention.call:
        if filler.startswith("causal: True") and keeps_what_is_true(subject.original, name) is ("hidden" in filler):
            witness = f"{name} hides the future where {filler[8:]}, and the model's own words say the opposite"
            findings.append(finding((("M05", 0.9), ("M12", 0.1)), witness, where=subject.attention_place))
    return findings


def leaks(subject: Subject, matrix: DependencyMatrix, run: Run, *, backend: str | None = None) -> list[Finding]:
    """Future tokens that reach past positions, with the first place where they do. `backend`: on that path alone."""
    future = matrix.influence.triu(1)
    if not matrix.alive.triu(1).any():
        return []
    i, j = divmod(int(future.argmax()), len(future))
    T = len(matrix.ids)
    base, changed = subject.swapped(T)
    leak = locate(subject.model, run, base, changed, token_reading(T), reaches_back)
    is_mask, has_source = _is_masked_away(subject, run, T), subject.convention.has_source
    where, causes = leak.where, leak_causes(leak, is_mask=is_mask, has_source=has_source)
    backend = backend or _only_here(subject, T)
    if backend:
        where, causes = replace(where, backend=backend), (("M02", 0.9), *((id, 0.1 * score) for id, score in causes))
    picture, value = matrix.picture(torch.ones_like(matrix.alive).tril()), float(future.max())
    tell = partial(finding, causes, matrix.witness((i, j)), value=value, threshold=matrix.threshold, floor=matrix.floor)
    return [tell(where=where, picture=picture, second=MUCH if value > FAINT else "")]


def _is_masked_away(subject: Subject, run: Run, T: int) -> bool:
    """Whether no token reaches back where every attention is masked from outside, or none sees any."""

    def masked(inputs: Inputs) -> Tensor:
        with causally_masked():
            return run(inputs)

    with attempt():
        matrix = subject.dependencies(masked, T)
        return not matrix.influence.isfinite().all() or not reaches_back(matrix.alive)
    return False


def other_attention(subject: Subject) -> tuple[str, str, Run] | None:
    """The attention that transformers uses for the model, the other that it offers, and a run with that; or None."""
    current = setting(subject.model, "_attn_implementation")
    choose: Callable[[str], None] | None = getattr(subject.model, "set_attn_implementation", None)
    if current not in ("eager", "sdpa") or choose is None:
        return None
    other = "eager" if current == "sdpa" else "sdpa"

    def run(inputs: Inputs) -> Tensor:
        choose(other)
        try:
            return subject.run(inputs)
        finally:
            choose(current)

    return current, other, run


def _only_here(subject: Subject, T: int) -> str | None:
    """The attention or the mode in use, if nothing leaks in another: the mask is then missing in this one only."""
    choice = other_attention(subject)
    elsewhere = {} if choice is None else {f"{choice[0]} attention": choice[2]}
    elsewhere |= {} if has_batch_norm(subject) else {"eval()": partial(run_in_training, subject)}
    for name, run in elsewhere.items():
        with attempt():  # it may not run there after all
            matrix = subject.dependencies(run, T)
            if matrix.influence.isfinite().all() and matrix.alive.any() and not reaches_back(matrix.alive):
                return name
    return None


def run_in_training(subject: Subject, inputs: Inputs, *, graph: bool = False) -> Tensor:
    """Logits in training mode, without dropout."""
    with subject.training():
        return subject.run(inputs, graph=graph).detach()


def has_batch_norm(subject: Subject) -> bool:
    """Whether it has a norm over the batch, whose training mode mixes rows and positions."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in subject.model.modules())


def reaches_back(alive: Tensor) -> bool:
    """Whether a token moves an earlier position."""
    return bool(alive.triu(1).any())


def _gaps(subject: Subject, matrix: DependencyMatrix) -> list[Finding]:
    """A causal model reads all tokens up to its own, or all in its window."""
    shape, number = shape_of(matrix.alive)
    allowed, maps = torch.ones_like(matrix.alive).tril(), _self_attentions(subject)
    picture, where = matrix.picture(allowed), subject.attention_place
    window, T = subject.spec.window, len(allowed)
    if window is not None and window < T:
        reach, n_layers = number if shape == "window" else T, max(1, len(maps))
        expected = min(T, (window - 1) * n_layers + 1)
        if shape not in ("window", "causal") or reach == expected:
            return []
        witness = f"logits depend on {reach} tokens; a window of {window} in {n_layers} layers makes that {expected}"
        picture = matrix.picture(allowed.triu(1 - window))
        return [finding("M16", witness, value=reach, threshold=window, picture=picture)]
    blind = _blind(maps)
    if shape == "strict":
        if maps and blind is None:
            reason = "no token moves its own logits, and no attention hides a token from itself"
            assumption = Assumption("its rows", "shifted by one before the first layer", (reason,))
            subject.journal.assumptions.append(assumption)
            return []
        witness = "changing token 1 leaves logits 1 as they are, to the last bit"
        where = where if blind is None else subject.place_of(blind.call)
        return [finding((("M07", 0.7), ("N04", 0.3)), witness, value=0.0, where=where, picture=picture)]
    if shape == "gaps" and not matrix.alive.diagonal().all():
        i = int((~matrix.alive.diagonal()).nonzero()[0])
        witness = f"changing token {i} leaves logits {i} as they are, while other tokens move theirs"
        return [finding((("M07", 0.5), ("N04", 0.5)), witness, value=0.0, status="warn", picture=picture)]
    if blind is not None and blind.allowed.diagonal(-1).all():  # the residual stream hides this from the logits
        witness = f"in the attention, token {T - 1} sees token {T - 2} but not itself"
        return [finding("M07", witness, value=0.0, where=subject.place_of(blind.call), status="warn")]
    return []


def _self_attentions(subject: Subject) -> list[AttentionCall]:
    """Those among the tokens of one row."""
    T = subject.calling.T
    return [attention for attention in subject.attentions if attention.allowed.shape == (T, T)]


def _blind(maps: Sequence[AttentionCall]) -> AttentionCall | None:
    """The first that hides tokens from themselves; the first token may have nothing else to see."""
    return next((attention for attention in maps if not attention.allowed.diagonal()[1:].any()), None)


def _one_sided(subject: Subject, matrix: DependencyMatrix) -> list[Finding]:
    """A bidirectional model reads the tokens on both sides."""
    shape, _ = shape_of(matrix.alive)
    witness = f"changing token {len(matrix.alive) - 1} moves no logits before it, in a bidirectional model"
    faults = dict.fromkeys(("causal", "window", "strict", "gaps"), ("S03", witness))
    faults["reversed"] = ("M04", "no token moves a later logit")
    picture, where = matrix.picture(torch.ones_like(matrix.alive)), subject.attention_place
    return [finding(*faults[shape], value=0.0, where=where, picture=picture)] if shape in faults else []
