"""How much padding stands behind a row must not matter."""

from dataclasses import replace

import torch

from clearhead.doctor.checks.base import Causes, Finding, Status, Subject, attempt, finding
from clearhead.doctor.checks.padding.masks import PaddingMask, padded_batch
from clearhead.doctor.checks.padding.padding_tokens import LENGTH_THRESHOLD, POOLED, ROWS, pooled_at
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.tensors import change_of


def amounts(mask: PaddingMask) -> list[Finding]:
    """Three more tokens of padding under a mask move no real token's logits. They do in a mean over all positions."""
    subject, source = mask.subject, mask.source
    inputs, _, keep = padded_batch(subject, source)
    short = keep.shape[1] - 3
    if short < 2 or (subject.looks_back_only and not source):
        return []
    cut = inputs.with_tokens(source, inputs.tokens(source)[:, :short])
    real = torch.arange(keep.shape[1]).expand(keep.shape) < short
    with attempt() as attempted:
        before, after = mask.run(cut.with_keep(source, real[:, :short])), mask.run(inputs.with_keep(source, real))
    if attempted.failed:  # it takes rows of one length only
        subject.journal.untried(f"more padding under {mask.names[0]}", attempted)
        return []
    after = after if source else after[:, :short]
    if not (before.isfinite().all() and after.isfinite().all()):
        return []
    value = change_of(before, after)
    if value <= LENGTH_THRESHOLD:
        return []
    row, name = "the source" if source else "a row", mask.names[0]
    witness = f"three tokens of padding after {row}, hidden by {name}, move the logits of real tokens by {value:.1e}"
    where = pooled_at(subject, source=source)
    causes: Causes = (("S01", 0.7), ("M11", 0.3)) if source else (("M11", 0.8), ("S01", 0.2))
    causes = causes if where is None else POOLED
    status: Status = "fail" if _attends_to_all(subject) else "warn"
    return [finding(causes, witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status)]


def _attends_to_all(subject: Subject) -> bool:
    """Whether every attention is over all tokens, or over numbers: none over chunks, landmarks or pooled tokens."""
    if not (subject.convention.reads_words("ids") and subject.convention.reads_words("source")):
        return True
    maps = attentions(subject.operations(subject.inputs()))
    sizes = {size for attention in maps for size in attention.allowed.shape}
    return bool(sizes) and sizes <= {subject.calling.T, subject.calling.S}


def behind(subject: Subject, name: str) -> list[Finding] | None:
    """Telling a causal model the lengths of its rows moves no real token's logits: padding behind them is the future.

    None if the parameter does not take lengths.
    """
    inputs = subject.inputs(ROWS, salt=5)
    keep = torch.ones_like(inputs.ids, dtype=torch.bool)
    for row in range(1, ROWS):
        keep[row, -row:] = False
    changed = inputs.ids.clone()
    changed[:, 0] = subject.inputs(ROWS, salt=6).ids[:, 0]
    batches = [replace(inputs, ids=ids, keep=keep) for ids in (inputs.ids, changed)]
    mask = PaddingMask(subject, (name,), "lengths", False)
    plain = [subject.run(batch) for batch in batches]
    with attempt() as attempted:
        masked = [mask.run(batch) for batch in batches]
    if attempted.failed:
        return None
    causes: Causes = (("M12", 0.7), ("M14", 0.3))
    where = subject.attention_place
    if not masked[0][keep].isfinite().all():
        return [finding(causes, f"with the lengths of rows in {name}, logits of real tokens are NaN", where=where)]
    value = float((masked[0] - plain[0])[keep].abs().max()) / (float(plain[0].std()) or 1.0)
    subject.journal.paths.append(str(mask))
    if value <= LENGTH_THRESHOLD:
        return []
    last = torch.arange(ROWS), keep.sum(1) - 1  # the last real token of every row
    heard, still = ((first - second)[last].abs().amax(-1)[1:] for first, second in (plain, masked))
    if bool((heard > 0).all()) and not still.any():
        witness = f"with the lengths of rows in {name}, token 0 no longer moves the logits of the last real token"
        return [finding(causes, witness, value=value, threshold=LENGTH_THRESHOLD, where=where)]
    witness = f"with the lengths of rows in {name}, the logits of real tokens move by {value:.1e} of their spread"
    return [finding("M12", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status="warn")]
