"""What the target's logits know of the source: all of it, in its context, whatever its length."""

from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import role_of
from clearhead.doctor.calling.names import SOURCE
from clearhead.doctor.calling.trial import vocabularies
from clearhead.doctor.checks.base import STEADY, Causes, Finding, Skipped, Subject, Where, attempt, finding, model_check
from clearhead.doctor.checks.parts.effects import moves
from clearhead.doctor.probes.attention import HIDDEN, AttentionCall, attentions
from clearhead.doctor.probes.localization import token_reading, trace_modules
from clearhead.doctor.probes.locations import layer_of, owner_of, place_of_call
from clearhead.doctor.probes.tensors import relative_change
from clearhead.doctor.probes.tracing import ModuleCall

ENCODER = "its encoder, in which the source sees all of itself"
ALIKE = 1e-5  # of the largest score: the same but for rounding
SOURCE_FAULTS = ("M12", "S01", "S03", "S04", "S06", "S09", "A12", "A13", "I06")


@model_check("S02", "sources", order=110, covers=SOURCE_FAULTS, needs=(*STEADY, "rows", "layouts"))
def sources(subject: Subject) -> list[Finding]:
    """Every token of the source moves every logit of the target."""
    if not subject.convention.has_source:
        raise Skipped("it reads no source")
    if subject.calling.S == subject.calling.T:  # two rows that belong together token by token may both look back only
        return _as_long(subject)
    mixing = _mixing(subject)
    crossing = [a for a in subject.attentions if a.allowed.shape == (subject.calling.T, subject.calling.S)]
    return (
        _one_sided(subject, mixing)
        or _dead(subject, crossing)
        or _hidden(subject, crossing)
        or _pooled(subject, crossing)
        or _unused(subject, [call for call, _ in mixing], crossing)
        or _cut(subject)
    )


def _as_long(subject: Subject) -> list[Finding]:
    """A source that must be as long as its target: it is read, and by every step to its end.

    Raises:
        Skipped: it is not known which attention reads it, or it may be meant to be read step by step.
    """
    if not subject.source_matrix.alive.any():
        return _dead(subject, [])
    inputs, other = (subject.inputs(2, salt=salt) for salt in (0, 33))
    batches = (inputs, inputs.with_tokens(True, other.tokens(True)), inputs.with_tokens(False, other.ids))
    passes = [list(attentions(subject.operations(batch))) for batch in batches]
    sees_all = False  # whether an attention that the source alone makes, as an encoder's, hides nothing
    for attention, by_source, by_target in zip(*passes, strict=False):
        read = [
            [_moves(*pair) for pair in zip(*map(_read, (attention, then)), strict=True)]
            for then in (by_source, by_target)
        ]
        if len(read[0]) < 2:
            continue
        (query_of_source, key_of_source), (query_of_target, key_of_target) = read
        sees_all |= query_of_source and key_of_source and not query_of_target and attention.allowed.all()
        crosses = query_of_target and key_of_source and not key_of_target
        maps, steps = attention.allowed, torch.ones_like(attention.allowed).tril()
        if crosses and sees_all and (torch.equal(maps, steps) or torch.equal(maps, steps.T)):
            sides = "before" if torch.equal(maps, steps) else "after"
            witness = f"a step sees its own place in the source and those {sides} it, and the source must be as long"
            where = subject.place_of(attention.call)
            return [finding((("S04", 0.9), ("S02", 0.1)), witness, value=0.0, where=where, against=ENCODER)]
    raise Skipped("it takes a source only if that is as long as its target")


def _read(attention: AttentionCall) -> list[Tensor]:
    """Queries and keys, where they are known."""
    known = [attention.query, attention.key] if attention.query is not None else list(attention.call.inputs[:2])
    return [tensor for tensor in known if tensor is not None]


def _moves(before: Tensor, after: Tensor) -> bool:
    return before.shape == after.shape and relative_change(before, after) > ALIKE


def _mixing(subject: Subject) -> list[tuple[ModuleCall, Tensor]]:
    """The modules in whose outputs tokens of the source have met, with who met whom (S, S)."""
    reading, calls = token_reading(subject.calling.S), []
    other = ~torch.eye(subject.calling.S, dtype=torch.bool)
    passes = trace_modules(subject.model, subject.run, *subject.swapped(source=True))
    for before, after in zip(*passes, strict=False):
        for first, second in zip(before.outputs, after.outputs, strict=False):
            if subject.calling.T in first.shape[1:]:
                continue  # weights of the target over the source
            influences = reading(first, second)
            if influences is not None and bool((influences & other).any()):
                calls.append((after, influences))
    return calls


def _one_sided(subject: Subject, mixing: Sequence[tuple[ModuleCall, Tensor]]) -> list[Finding]:
    """An encoder that only looks back: the influences in its last hidden state form a triangle."""
    if not mixing or mixing[-1][1].triu(1).any():
        return []
    where = place_of_call(next(call for call, met in mixing if met.tril(-1).any()))
    witness, S = "in the encoder, no token of the source moves an earlier position", subject.calling.S
    is_masked = any(a.allowed.shape == (S, S) and not a.allowed.triu(1).any() for a in subject.attentions)
    second = "an attention of the encoder, which hides what comes later" if is_masked else ""  # and no recurrence
    return [finding((("S03", 0.8), ("S04", 0.2)), witness, value=0.0, where=where, second=second)]


def _dead(subject: Subject, crossing: Sequence[AttentionCall]) -> list[Finding]:
    alive = subject.source_matrix.alive  # (T, S)
    if alive.all():
        return []
    picture = subject.source_matrix.picture(torch.ones_like(alive))
    if not alive.any() and not _is_a_source(subject):
        names = " and ".join(name for name, filler in subject.convention.call if role_of(filler) == "source")
        raise Skipped(f"{names} moves no logit, and nothing says that it is a source")
    if not alive.any():
        witness = "no token of the source moves any logit"
        shut = next((attention for attention in subject.attentions if not attention.allowed.any()), None)
        causes: Causes = (("S02", 0.7), ("S06", 0.3))
        if shut is not None and crossing:  # the source is read, under a mask that hides everything real
            causes = (("M12", 0.8), ("S02", 0.2))
        where = subject.place_of(shut.call) if shut is not None and crossing else _second_of_a_layer(subject)
        return [finding(causes, witness, value=0.0, where=where, picture=picture)]
    i, j = (int(part) for part in (~alive).nonzero()[0])
    witness = f"changing token {j} of the source leaves logits {i} as they are"
    steps = torch.arange(alive.shape[0])[:, None] >= torch.arange(alive.shape[1])[None, :]
    if torch.equal(alive, steps) or torch.equal(alive, ~steps):
        return [finding((("S04", 0.8), ("S03", 0.2)), witness, value=0.0, picture=picture)]
    if not alive.any(0)[-1]:
        return [finding((("S09", 0.7), ("S04", 0.3)), witness, value=0.0, picture=picture)]
    return [finding((("S04", 0.5), ("S02", 0.3), ("S06", 0.2)), witness, value=0.0, picture=picture, status="warn")]


def _is_a_source(subject: Subject) -> bool:
    """Whether anything shows that what is given as a source is one: an embedding reads it, or its name says so."""
    inputs = subject.inputs(3)
    with vocabularies(subject.model, inputs) as sizes:
        subject.run(inputs)
    names = [name for name, filler in subject.convention.call if role_of(filler) == "source"]
    return "source" in sizes or any(SOURCE.search(name) for name in names) or bool(subject.convention.dicts)


def _second_of_a_layer(subject: Subject) -> Where:
    """The second self-attention of the first layer that has two: there the source should be read."""
    layers: set[str] = set()
    for attention in subject.attentions:
        where = subject.place_of(attention.call)
        layer = layer_of(where.module)
        if attention.allowed.shape != (subject.calling.T, subject.calling.T) or layer is None:
            continue
        if layer in layers:
            return where
        layers.add(layer)
    return owner_of(subject.model, "source")


def _hidden(subject: Subject, crossing: Sequence[AttentionCall]) -> list[Finding]:
    """A mask over the source, though nothing is padded."""
    for attention in crossing:
        if attention.allowed.all() or not attention.allowed.any():  # hiding everything is a padding mask turned round
            continue
        i = int((~attention.allowed.all(-1)).nonzero()[0])
        few = int(attention.allowed[i].sum())
        witness = f"position {i} may look at {few} of {subject.calling.S} source tokens, none of which is padding"
        where = subject.place_of(attention.call)
        return [finding((("S04", 0.9), ("S01", 0.1)), witness, value=0.0, where=where)]
    return []


def _pooled(subject: Subject, crossing: Sequence[AttentionCall]) -> list[Finding]:
    """Every position of the memory holds the same vector: all scores of a query are equal."""
    scored = [attention for attention in crossing if attention.scores is not None]
    for attention in scored:
        assert attention.scores is not None
        span = attention.scores.amax(-1) - attention.scores.amin(-1)
        is_masked = bool((attention.scores < HIDDEN).any()) or not attention.scores.any()  # some masks make zeros
        if is_masked or float(span.max()) > ALIKE * float(attention.scores.abs().max()):
            return []
    if not scored:
        return []
    witness = "every position of the source has the same score for any query: the memory is one vector"
    return [finding((("S06", 0.9), ("S02", 0.1)), witness, value=0.0, where=subject.place_of(scored[0].call))]


def _unused(subject: Subject, mixing: Sequence[ModuleCall], crossing: Sequence[AttentionCall]) -> list[Finding]:
    """An encoder that is run, and whose output nothing reads."""
    weights = {id(p): p for call in mixing if call.module is not None for p in call.module.parameters() if p.dim() > 1}
    if not weights or moves(subject, list(weights.values())):
        return []
    paths = [call.name for call in mixing] + [subject.place_of(a.call).module or "" for a in crossing]
    steps = list(zip(*(path.split(".") for path in paths), strict=False))
    shared = [names[0] for names in takewhile(lambda names: len({*names}) == 1, steps)]
    where = owner_of(subject.model, ".".join([*shared, "source"]), own_code=True)
    witness = f"changing all weights of the encoder from {mixing[0].name} on moves no logit"
    return [finding((("S06", 0.6), ("S02", 0.3), ("A13", 0.1)), witness, value=0.0, where=where)]


def _cut(subject: Subject) -> list[Finding]:
    """A source that is longer than its target is read to its end."""
    T = max(2, subject.calling.S // 2)
    with attempt() as attempted:
        matrix = subject.dependencies(subject.run, T, source=True)
    if attempted.failed:  # it takes targets of one length only
        subject.journal.untried("a shorter target", attempted)
        return []
    if matrix.alive[:, -1].any() or not matrix.influence.isfinite().all():
        return []
    last = int(matrix.alive.any(0).nonzero().max()) if matrix.alive.any() else 0
    witness = f"with a target of {T} tokens, no token of the source after {last} moves any logit"
    where = owner_of(subject.model, "source")
    return [finding((("S09", 0.9), ("S04", 0.1)), witness, value=0.0, where=where)]
