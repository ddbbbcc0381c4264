"""How much padding there is, where a mask hides it."""

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs, Run
from clearhead.doctor.checks.base import Causes, finding
from clearhead.doctor.checks.padding.padding_tokens import LENGTH_THRESHOLD, POOLED, pooled_at
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.dependency import change_of
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Status
from clearhead.doctor.subject import Subject


def amounts(
    subject: Subject, batch: tuple[Inputs, Tensor, Tensor], run: Run, name: str, *, source: bool
) -> list[Finding]:
    """How much padding stands behind a row must not matter either, as it does where a mean is over all places."""
    inputs, keep, _ = batch
    short = keep.shape[1] - 3
    if short < 2 or (subject.looks_back_only and not source):
        return []
    cut = inputs.with_tokens(source, inputs.tokens(source)[:, :short])
    real = torch.arange(keep.shape[1]).expand(keep.shape) < short
    with attempt() as attempted, subject.quiet():
        before = run(cut.with_keep(source, real[:, :short]))
        after = run(inputs.with_keep(source, real))
    if attempted.failed:  # it takes rows of one length only
        subject.journal.untried(f"more padding under {name}", attempted)
        return []
    after = after if source else after[:, :short]
    if not (before.isfinite().all() and after.isfinite().all()):
        return []
    value = change_of(before, after)
    if value <= LENGTH_THRESHOLD:
        return []
    what = "the source" if source else "a row"
    witness = f"three places of padding behind {what}, hidden by {name}, move the logits of real tokens by {value:.1e}"
    status: Status = "fail" if _is_plain(subject) else "warn"
    where = pooled_at(subject, source=source)
    causes: Causes = (("S01", 0.7), ("M11", 0.3)) if source else (("M11", 0.8), ("S01", 0.2))
    causes = causes if where is None else POOLED
    return [finding(causes, witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status)]


def _is_plain(subject: Subject) -> bool:
    """Whether every attention is over all tokens, or over numbers: none over chunks, landmarks or what was pooled."""
    if not (subject.convention.reads_words("ids") and subject.convention.reads_words("source")):
        return True
    maps = attentions(subject.operations(subject.inputs()))
    sizes = {size for attention in maps for size in attention.allowed.shape}
    return bool(sizes) and sizes <= {subject.calling.T, subject.calling.S}
