"""Padding that a model knows by its token, where no mask is given."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from clearhead.doctor.checks.base import Causes, Skipped, finding
from clearhead.doctor.checks.basics import first_spoilt
from clearhead.doctor.checks.places import attention_place, place_of
from clearhead.doctor.conventions.inputs import Inputs
from clearhead.doctor.conventions.names import TARGET, parameters_of
from clearhead.doctor.instruments.attention import attentions
from clearhead.doctor.instruments.tracing import recorded_modules, recorded_ops
from clearhead.doctor.patient import PAD_NAMES, Patient
from clearhead.doctor.reports.findings import Finding, Status, Where

LENGTH_THRESHOLD = 1e-3  # of the logits' spread, where shapes differ, and with them the order of sums
ROWS = 3
POOLED: Causes = (("M22", 0.8), ("M11", 0.2))
OWN_MIXERS = {"conv1d", "conv2d", "fft", "gru", "lstm", "rnn_tanh"}  # which no mask reaches


def by_token(patient: Patient, *, source: bool) -> list[Finding]:
    """Where padding is a token: more of it on the right must not move the logits of what stands before it."""
    pad = patient.pad_id
    assert pad is not None
    if not knows_padding(patient, source=source):
        raise Skipped("nothing in it speaks of padding")
    inputs = patient.inputs(ROWS, salt=5)
    row = inputs.source if source else inputs.ids
    assert row is not None
    short = row.shape[1] - 3
    padded = row.clone()
    padded[:-1, short:] = pad  # the last row is full: masks are each row's own
    long_, alone = (replace(inputs, **{"source" if source else "ids": ids}) for ids in (padded, row[:, :short]))
    if source and patient.found.S == patient.found.T:  # so it is where other lengths are refused
        alone = replace(alone, ids=inputs.ids[:, :short], labels=inputs.ids[:, :short])
    with patient.quiet():
        before, after = patient.run(alone)[:-1], patient.run(long_)[:-1]
    after = after[:, : before.shape[1]]
    what = "the source" if source else "a row"
    if not (before.isfinite().all() and after.isfinite().all()):
        return [
            finding((("M14", 0.6), ("M12", 0.4)), f"with padding (token {pad}) behind {what} logits are not finite")
        ]
    value = float((after - before).abs().max()) / (float(before.std()) or 1.0)
    patient.paths.append(f"{what} padded with token {pad}")
    if value <= LENGTH_THRESHOLD:
        return []
    witness = f"three tokens of padding (token {pad}) behind {what} move the logits of real tokens by {value:.1e}"
    mixer = own_mixer(patient)
    status: Status = "warn" if mixer else "fail"
    place, causes = _sees_padding(patient, long_.rows(torch.arange(ROWS - 1)), 3, source=source)
    return [finding(causes, witness, value=value, threshold=LENGTH_THRESHOLD, where=place, status=status)]


def where_not_given(patient: Patient, masks: Sequence[tuple[str, bool]], safe: Collection[bool]) -> list[Finding]:
    """Masks that are made of the tokens where none is given: what one attention hides, no other may see.

    Only a warning on the sides, the source's or the target's, that are `safe`: there a mask that is given hides it all.
    """
    found: list[Finding] = []
    optional = {p.name for p in parameters_of(patient.model) if p.default is None}
    optional -= {name for name, _ in patient.convention.call}
    for source in {of_source for _, of_source in masks}:
        names = {name for name, of_source in masks if of_source == source}
        if not (names <= optional and knows_padding(patient, source=source)):
            continue
        if (source or not patient.looks_back_only) and _hides_padding(patient, source=source):
            told = by_token(patient, source=source)
            found += [replace(one, status="warn") for one in told] if source in safe else told
    return found


def _hides_padding(patient: Patient, *, source: bool) -> bool:
    """Whether any attention hides tokens that are padding, of those that it looks at."""
    inputs = patient.inputs(ROWS, salt=5)
    row = inputs.source if source else inputs.ids
    assert row is not None
    padded, n = row.clone(), row.shape[1]
    assert patient.pad_id is not None
    padded[:, -3:] = patient.pad_id
    with patient.quiet(), recorded_ops() as ops:
        patient.run(replace(inputs, **{"source" if source else "ids": padded}))
    seen = [one.allowed for one in attentions(ops.calls) if one.allowed.shape[1] == n]
    return any(bool(allowed[:, :-3].any()) and not bool(allowed[:, -3:].any()) for allowed in seen)


def in_front(patient: Patient) -> list[Finding]:
    """Padding in front of a row leaves its first queries nothing to look at: no NaN may come of it."""
    inputs = patient.inputs(ROWS, salt=5)
    ids = inputs.ids.clone()
    assert patient.pad_id is not None
    ids[0, :2] = patient.pad_id
    with patient.quiet(), recorded_modules(patient.model) as calls:
        logits = patient.run(replace(inputs, ids=ids))
    if logits[0, 2:].isfinite().all():
        return []
    guilty = first_spoilt(calls)
    witness = f"with two tokens of padding (token {patient.pad_id}) in front, logits of the real tokens behind are NaN"
    return [finding((("M14", 0.9), ("M12", 0.1)), witness, where=guilty)]


def _sees_padding(patient: Patient, inputs: Inputs, padded: int, *, source: bool) -> tuple[Where, Causes]:
    """The first attention in which real queries may look at the last keys, which are padding."""
    row = inputs.source if source else inputs.ids
    assert row is not None
    n = row.shape[1]
    with patient.quiet(), recorded_ops() as ops:
        patient.run(inputs)
    for seen in attentions(ops.calls):
        crossing = seen.allowed.shape[0] != n
        queries = seen.allowed if crossing else seen.allowed[:-padded]
        if seen.allowed.shape[1] != n or not bool(queries[:, -padded:].any()):
            continue
        where = place_of(patient, seen.call)
        if not queries[:, :-padded].any():
            return where, (("M12", 0.8), ("M11", 0.2))
        if source and crossing:
            return where, (("S01", 0.7), ("M11", 0.2), ("M12", 0.1))
        return where, (("M11", 0.7), ("M12", 0.2), ("M13", 0.1))
    pooling = pooled_at(patient, source=source)
    if pooling is not None:
        return pooling, POOLED
    causes: Causes = (
        (("S01", 0.5), ("M11", 0.3), ("M12", 0.2)) if source else (("M11", 0.6), ("M12", 0.2), ("M13", 0.2))
    )
    return attention_place(patient), causes


def pooled_at(patient: Patient, *, source: bool) -> Where | None:
    """Where a model that says one thing of a row makes it of all places: the last operation that leaves none."""
    if not patient.gives_rows:
        return None
    n = patient.found.S if source else patient.found.T
    with patient.quiet(), recorded_ops() as ops:
        patient.run(patient.inputs(ROWS))
    pooling = [
        call
        for call in ops.calls
        if call.module is not None
        and any(n in tensor.shape[1:] and tensor.dim() == 3 for tensor in call.inputs)
        and call.outputs
        and not any(n in tensor.shape[1:] for tensor in call.outputs)
    ]
    return place_of(patient, pooling[-1]) if pooling else None


def knows_padding(patient: Patient, *, source: bool = False) -> bool:
    """Whether the model was told of a padding token, or compares its inputs with one; a target's is no source's."""
    names = [name for name in PAD_NAMES if not (source and TARGET.search(name))]
    told = patient.spec.pad_id is not None or any(hasattr(patient.original, name) for name in names)
    return told or patient.compared_id is not None


def own_mixer(patient: Patient) -> str | None:
    """An operation that mixes tokens and takes no mask."""
    with patient.quiet(), recorded_ops(lambda name: name in OWN_MIXERS) as ops:
        patient.run(patient.inputs())
    return next((call.name for call in ops.calls), None)
