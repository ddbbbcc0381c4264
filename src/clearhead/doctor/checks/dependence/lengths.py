"""How many tokens follow is part of the future too."""

from dataclasses import replace

import torch

from clearhead.doctor.checks.base import SOUND, Skipped, finding, model_check
from clearhead.doctor.checks.generation.decoding import first_off
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.probes.tracing import recorded_modules
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

CUT = 3  # tokens
MOVED = 1e-3  # of the logits' spread: shapes differ, and with them the order of sums


@model_check(
    "M21",
    "lengths",
    order=120,
    covers=("M21",),
    holds="leaving out the last tokens moves no logit before them",
    needs=SOUND,
)
def lengths(subject: Subject) -> list[Finding]:
    """Of a row whose last tokens are left out, every other logit stays."""
    if not subject.looks_back_only:
        raise Skipped("it may look ahead")
    T = subject.calling.T
    inputs = subject.inputs(2, salt=22)
    begun = replace(inputs, ids=inputs.ids[:, : T - CUT], labels=inputs.ids[:, : T - CUT])
    with torch.no_grad(), subject.quiet():
        with recorded_modules(subject.model) as whole:
            long_ = subject.run(inputs)[:, : T - CUT]
        with attempt() as attempted, recorded_modules(subject.model) as part:
            short = subject.run(begun)
        if attempted.failed:  # some models take one length only
            raise Skipped("it takes rows of one length only")
    moved = (long_ - short).abs().amax((0, 2)) / (float(short.std()) or 1.0)  # (T - CUT,)
    value = float(moved.max())
    if not value > MOVED:
        return []
    position = int(moved.argmax())
    witness = f"leaving out tokens {T - CUT} to {T - 1} moves logits {position} by {value:.1e} of their spread"
    where = place_of_call(first_off(part, whole, T, 0, T - CUT))
    return [finding("M21", witness, value=value, threshold=MOVED, where=where)]
