"""What the target's logits know of the source: all of it, in its context, and whatever its length."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.doctor.checks.base import BASE, Skipped, finding, model_check
from clearhead.doctor.checks.locations import place_of
from clearhead.doctor.checks.parts.effects import moves
from clearhead.doctor.probes.attention import HIDDEN, AttentionCall, attentions
from clearhead.doctor.probes.dependency import DependencyMatrix, dependency, swapped_rows
from clearhead.doctor.probes.localization import token_reading, trace_modules
from clearhead.doctor.probes.locations import layer_of, owner_of, place_of_call
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.subject import Subject

ALIKE = 1e-5  # of the largest score: the same but for rounding


@model_check(
    "S02",
    "sources",
    order=110,
    covers=("M12", "S01", "S02", "S03", "S04", "S06", "S09", "A12", "A13", "I06"),
    holds="the whole source moves every logit",
    needs=(*BASE, "layouts"),
)
def sources(subject: Subject) -> list[Finding]:
    """Every token of the source moves every logit of the target, over an encoder that looks both ways."""
    if not subject.convention.has_source:
        raise Skipped("it reads no source")
    if subject.calling.S == subject.calling.T:  # two rows that belong together place by place may look back only, both
        raise Skipped("it takes a source only if that is as long as its target")
    maps = list(attentions(subject.inside.calls))
    base, changed, _ = swapped_rows(subject.inputs(), subject.source_pool, subject.generator(2), source=True)
    mixing = _mixing(subject, trace_modules(subject.model, subject.run, base, changed))
    return (
        _one_sided(mixing)
        or _dead(subject, subject.source_matrix, maps)
        or _hidden(subject, maps)
        or _pooled(subject, maps)
        or _unused(subject, [call for call, _ in mixing], maps)
        or _cut(subject)
    )


def _mixing(subject: Subject, passes: tuple[list[ModuleCall], list[ModuleCall]]) -> list[tuple[ModuleCall, Tensor]]:
    """The modules in whose outputs tokens of the source have met, with who met whom (S, S)."""
    reading, calls = token_reading(subject.calling.S), []
    other = ~torch.eye(subject.calling.S, dtype=torch.bool)
    for before, after in zip(*passes, strict=False):
        for first, second in zip(before.outputs, after.outputs, strict=False):
            crossing = (
                subject.calling.T in first.shape[1:]
            )  # weights of target over source: no place of the source is told
            influences = None if crossing else reading(first, second)
            if influences is not None and bool((influences & other).any()):
                calls.append((after, influences))
    return calls


def _one_sided(mixing: Sequence[tuple[ModuleCall, Tensor]]) -> list[Finding]:
    """An encoder that looks back only: its last hidden state of the source is a triangle."""
    if not mixing or mixing[-1][1].triu(1).any():
        return []
    guilty = next(call for call, met in mixing if met.tril(-1).any())
    where = place_of_call(guilty)
    witness = "in the encoder no token of the source moves an earlier position"
    return [finding((("S03", 0.8), ("S04", 0.2)), witness, value=0.0, where=where)]


def _dead(subject: Subject, matrix: DependencyMatrix, maps: Sequence[AttentionCall]) -> list[Finding]:
    alive = matrix.alive  # (T, S)
    if alive.all():
        return []
    picture = matrix.picture(torch.ones_like(alive))
    if not alive.any():
        witness = "no token of the source moves any logit"
        shut = next((attention for attention in maps if not attention.allowed.any()), None)
        if shut is not None and _crossing(subject, maps):  # it is read, under a mask that hides all that is real
            closed = (("M12", 0.8), ("S02", 0.2))
            return [finding(closed, witness, value=0.0, where=place_of(subject, shut.call), picture=picture)]
        where = _second_of_a_layer(subject, maps)
        return [finding((("S02", 0.7), ("S06", 0.3)), witness, value=0.0, where=where, picture=picture)]
    i, j = (int(part) for part in (~alive).nonzero()[0])
    witness = f"changing token {j} of the source leaves logits {i} as they are"
    steps = torch.arange(alive.shape[0])[:, None] >= torch.arange(alive.shape[1])[None, :]
    if torch.equal(alive, steps) or torch.equal(alive, ~steps):
        return [finding((("S04", 0.8), ("S03", 0.2)), witness, value=0.0, picture=picture)]
    if not alive.any(0)[-1]:
        return [finding((("S09", 0.7), ("S04", 0.3)), witness, value=0.0, picture=picture)]
    return [finding((("S04", 0.5), ("S02", 0.3), ("S06", 0.2)), witness, value=0.0, picture=picture, status="warn")]


def _second_of_a_layer(subject: Subject, maps: Sequence[AttentionCall]) -> Where:
    """The first layer's second attention among the target's own tokens, which is where the source should be read."""
    layers: set[str] = set()
    for attention in maps:
        where = place_of(subject, attention.call)
        layer = layer_of(where.module)
        if attention.allowed.shape != (subject.calling.T, subject.calling.T) or layer is None:
            continue
        if layer in layers:
            return where
        layers.add(layer)
    return owner_of(subject.model, "source")


def _crossing(subject: Subject, maps: Sequence[AttentionCall]) -> list[AttentionCall]:
    return [attention for attention in maps if attention.allowed.shape == (subject.calling.T, subject.calling.S)]


def _hidden(subject: Subject, maps: Sequence[AttentionCall]) -> list[Finding]:
    """A mask of the target's kind over the source, though nothing is padded."""
    for attention in _crossing(subject, maps):
        if (
            attention.allowed.all() or not attention.allowed.any()
        ):  # nothing at all: a mask of padding that is turned round
            continue
        i = int((~attention.allowed.all(-1)).nonzero()[0])
        few = int(attention.allowed[i].sum())
        witness = f"position {i} may look at {few} of {subject.calling.S} source tokens, none of which is padding"
        return [finding((("S04", 0.9), ("S01", 0.1)), witness, value=0.0, where=place_of(subject, attention.call))]
    return []


def _pooled(subject: Subject, maps: Sequence[AttentionCall]) -> list[Finding]:
    """Every place of the memory is the same: all scores of a query are equal."""
    crossing = [attention for attention in _crossing(subject, maps) if attention.scores is not None]
    for attention in crossing:
        assert attention.scores is not None
        if bool((attention.scores < HIDDEN).any()):
            return []
        span = attention.scores.amax(-1) - attention.scores.amin(-1)
        if float(span.max()) > ALIKE * float(attention.scores.abs().max()):
            return []
    if not crossing:
        return []
    witness = "every position of the source has the same score, for any query: the memory is one vector"
    return [finding((("S06", 0.9), ("S02", 0.1)), witness, value=0.0, where=place_of(subject, crossing[0].call))]


def _unused(subject: Subject, mixing: Sequence[ModuleCall], maps: Sequence[AttentionCall]) -> list[Finding]:
    """An encoder that is run, and whose output nothing reads."""
    weights = {id(p): p for call in mixing if call.module is not None for p in call.module.parameters() if p.dim() > 1}
    if not weights or moves(subject, list(weights.values())):
        return []
    crossing = _crossing(subject, maps)
    paths = [call.name for call in mixing] + [place_of(subject, attention.call).module or "" for attention in crossing]
    where = owner_of(subject.model, ".".join([*_shared([path.split(".") for path in paths]), "source"]), own_code=True)
    witness = f"other weights in {mixing[0].name} and all that follows in the encoder move no logit"
    return [finding((("S06", 0.6), ("S02", 0.3), ("A13", 0.1)), witness, value=0.0, where=where)]


def _shared(paths: Sequence[Sequence[str]]) -> list[str]:
    """The steps with which all paths begin."""
    steps = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        steps.append(names[0])
    return steps


def _cut(subject: Subject) -> list[Finding]:
    """A source that is longer than its target counts to its end."""
    T = max(2, subject.calling.S // 2)
    with attempt() as attempted:
        matrix = dependency(subject.run, subject.inputs(T=T), subject.source_pool, subject.generator(2), source=True)
    if attempted.failed:  # it takes targets of one length only
        subject.journal.untried("a shorter target", attempted)
        return []
    if matrix.alive[:, -1].any() or not matrix.influence.isfinite().all():
        return []
    last = int(matrix.alive.any(0).nonzero().max()) if matrix.alive.any() else 0
    witness = f"with a target of {T} tokens, no token of the source behind {last} moves any logit"
    where = owner_of(subject.model, "source")
    return [finding((("S09", 0.9), ("S04", 0.1)), witness, value=0.0, where=where)]
