"""Padding that a model knows by its token, where no mask is given."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.names import PAD_NAMES, TARGET, parameters_of
from clearhead.doctor.checks.base import Causes, Finding, Skipped, Status, Subject, Where, finding
from clearhead.doctor.checks.basics import first_nan
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.tensors import change_of
from clearhead.doctor.probes.tracing import recorded_modules

LENGTH_THRESHOLD = 1e-3  # of the logits' spread, where shapes differ, and with them the order of sums
ROWS = 3
POOLED: Causes = (("M22", 0.8), ("M11", 0.2))
OWN_MIXERS = {"conv1d", "conv2d", "fft", "gru", "lstm", "rnn_tanh"}  # no mask reaches them


def by_token(subject: Subject, *, source: bool) -> list[Finding]:
    """Where padding is a token: three of them after a row must not move the logits of the tokens before them."""
    pad = subject.pad_id
    assert pad is not None
    if not knows_padding(subject, source=source):
        raise Skipped("nothing in the model mentions padding")
    inputs = subject.inputs(ROWS, salt=5)
    tokens = inputs.tokens(source)
    short = tokens.shape[1] - 3
    padded = tokens.clone()
    padded[:-1, short:] = pad  # the last row is full: every row has its own mask
    long_, alone = inputs.with_tokens(source, padded), inputs.with_tokens(source, tokens[:, :short])
    if source and subject.calling.S == subject.calling.T:  # the model needs source and target of one length
        alone = replace(alone, ids=inputs.ids[:, :short], labels=inputs.ids[:, :short])
    before, after = subject.run(alone)[:-1], subject.run(long_)[:-1]
    after = after[:, : before.shape[1]]
    row = "the source" if source else "a row"
    if not (before.isfinite().all() and after.isfinite().all()):
        witness = f"with padding (token {pad}) after {row}, logits are not finite"
        return [finding((("M14", 0.6), ("M12", 0.4)), witness)]
    value = change_of(before, after)
    subject.journal.paths.append(f"{row} padded with token {pad}")
    if value <= LENGTH_THRESHOLD:
        return []
    witness = f"three tokens of padding (token {pad}) after {row} move the logits of real tokens by {value:.1e}"
    where, causes = _sees_padding(subject, long_.rows(torch.arange(ROWS - 1)), 3, source=source)
    status: Status = "warn" if own_mixer(subject) else "fail"
    return [finding(causes, witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status)]


def where_not_given(subject: Subject, masks: Sequence[tuple[str, bool]], safe: Collection[bool]) -> list[Finding]:
    """Masks that the model makes from the tokens if none is given: what one attention hides, no other may see.

    Args:
        safe: the sides, source (True) or target, on which a mask hides all padding if it is given: findings there are
            only warnings.
    """
    findings: list[Finding] = []
    optional = {p.name for p in parameters_of(subject.model) if p.default is None}
    optional -= {name for name, _ in subject.convention.call}
    for source in {of_source for _, of_source in masks}:
        names = {name for name, of_source in masks if of_source == source}
        if not (names <= optional and knows_padding(subject, source=source)):
            continue
        if (source or not subject.looks_back_only) and _hides_padding(subject, source=source):
            faults = by_token(subject, source=source)
            findings += [replace(fault, status="warn") for fault in faults] if source in safe else faults
    return findings


def _hides_padding(subject: Subject, *, source: bool) -> bool:
    """Whether any attention hides the padding among its keys."""
    inputs = subject.inputs(ROWS, salt=5)
    padded = inputs.tokens(source).clone()
    assert subject.pad_id is not None
    padded[:, -3:] = subject.pad_id
    maps = (attention.allowed for attention in attentions(subject.operations(inputs.with_tokens(source, padded))))
    maps = (allowed for allowed in maps if allowed.shape[1] == padded.shape[1])
    return any(bool(allowed[:, :-3].any()) and not bool(allowed[:, -3:].any()) for allowed in maps)


def in_front(subject: Subject) -> list[Finding]:
    """Padding in front of a row leaves its first queries nothing to look at, which must not make NaN of later ones."""
    inputs = subject.inputs(ROWS, salt=5)
    ids = inputs.ids.clone()
    assert subject.pad_id is not None
    ids[0, :2] = subject.pad_id
    with recorded_modules(subject.model) as calls:
        logits = subject.run(replace(inputs, ids=ids))
    if logits[0, 2:].isfinite().all():
        return []
    witness = f"with two tokens of padding (token {subject.pad_id}) in front, the logits of the real tokens are NaN"
    return [finding((("M14", 0.9), ("M12", 0.1)), witness, where=first_nan(calls))]


def _sees_padding(subject: Subject, inputs: Inputs, padded: int, *, source: bool) -> tuple[Where, Causes]:
    """The first attention in which real queries may look at the last keys, which are padding."""
    n = inputs.tokens(source).shape[1]
    for attention in attentions(subject.operations(inputs)):
        crossing = attention.allowed.shape[0] != n
        queries = attention.allowed if crossing else attention.allowed[:-padded]
        if attention.allowed.shape[1] != n or not bool(queries[:, -padded:].any()):
            continue
        where = subject.place_of(attention.call)
        if not queries[:, :-padded].any():
            return where, (("M12", 0.8), ("M11", 0.2))
        if source and crossing:
            return where, (("S01", 0.7), ("M11", 0.2), ("M12", 0.1))
        return where, (("M11", 0.7), ("M12", 0.2), ("M13", 0.1))
    pooling = pooled_at(subject, source=source)
    if pooling is not None:
        return pooling, POOLED
    of_source: Causes = (("S01", 0.5), ("M11", 0.3), ("M12", 0.2))
    return subject.attention_place, of_source if source else (("M11", 0.6), ("M12", 0.2), ("M13", 0.2))


def pooled_at(subject: Subject, *, source: bool) -> Where | None:
    """Where a model with one output per row pools its tokens: the last operation whose result has no axis for them."""
    if not subject.gives_rows:
        return None
    n = subject.calling.S if source else subject.calling.T
    pooling = [
        call
        for call in subject.operations(subject.inputs(ROWS))
        if call.module is not None
        and any(n in tensor.shape[1:] and tensor.dim() == 3 for tensor in call.inputs)
        and call.outputs
        and not any(n in tensor.shape[1:] for tensor in call.outputs)
    ]
    return subject.place_of(pooling[-1]) if pooling else None


def knows_padding(subject: Subject, *, source: bool = False) -> bool:
    """Whether the model has a padding token, declared or compared with its inputs. The target's is not the source's."""
    names = [name for name in PAD_NAMES if not (source and TARGET.search(name))]
    is_declared = subject.spec.pad_id is not None or any(hasattr(subject.original, name) for name in names)
    return is_declared or subject.compared_id is not None


def own_mixer(subject: Subject) -> str | None:
    """An operation that mixes tokens and takes no mask."""
    mixers = subject.operations(subject.inputs(), named=lambda name: name in OWN_MIXERS)
    return mixers[0].name if mixers else None
