"""Padding behind the rows of a causal model: it is the future, so that telling of it changes nothing."""

from dataclasses import replace

import torch

from clearhead.doctor.calling.inputs import keep_filler
from clearhead.doctor.checks.base import Causes, finding
from clearhead.doctor.checks.locations import attention_place
from clearhead.doctor.checks.padding.padding_tokens import LENGTH_THRESHOLD, ROWS
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Status
from clearhead.doctor.subject import Subject


def behind(subject: Subject, name: str) -> list[Finding] | None:
    """Given the lengths of its rows, it leaves the logits of real tokens as they are; None where it takes none."""
    inputs = subject.inputs(ROWS, salt=5)
    keep = torch.ones_like(inputs.ids, dtype=torch.bool)
    for row in range(1, ROWS):
        keep[row, -row:] = False
    mask = keep_filler("lengths", False)(replace(inputs, keep=keep), subject.convention.time_first)
    changed = inputs.ids.clone()
    changed[:, 0] = subject.inputs(ROWS, salt=6).ids[:, 0]
    other = replace(inputs, ids=changed)
    with torch.no_grad(), subject.quiet():
        untold, untold_other = subject.run(inputs), subject.run(other)
        with attempt() as attempted:
            masked, told_other = (
                subject.convention.logits(subject.model, batch, **{name: mask}) for batch in (inputs, other)
            )
        if attempted.failed:  # it is no length of rows
            return None
    causes: Causes = (("M12", 0.7), ("M14", 0.3))
    where = attention_place(subject)
    if not masked[keep].isfinite().all():
        witness = f"told by {name} how many tokens of a row are real, it makes NaN of real tokens, and numbers untold"
        return [finding(causes, witness, where=where)]
    value = float((masked - untold)[keep].abs().max()) / (float(untold.std()) or 1.0)
    subject.journal.paths.append(f"{name} (lengths)")
    if value <= LENGTH_THRESHOLD:
        return []
    last = torch.arange(ROWS), keep.sum(1) - 1  # the last real token of every row
    heard, still = (
        (batch - two)[last].abs().amax(-1)[1:] for batch, two in ((untold, untold_other), (masked, told_other))
    )
    if bool((heard > 0).all()) and not still.any():
        witness = f"told by {name} that it is real, token 0 moves no logit of the last real token, as it does untold"
        return [finding(causes, witness, value=value, threshold=LENGTH_THRESHOLD, where=where)]
    witness = f"told by {name} of padding behind a row, the logits of real tokens move by {value:.1e} of their spread"
    status: Status = "warn"  # a length may be meant to be read
    return [finding("M12", witness, value=value, threshold=LENGTH_THRESHOLD, where=where, status=status)]
