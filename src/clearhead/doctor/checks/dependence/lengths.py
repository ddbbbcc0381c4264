"""How many tokens follow is part of the future too."""

from dataclasses import replace

import torch

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.checks.generation.decoding import first_off
from clearhead.doctor.instruments.places import place_of_call
from clearhead.doctor.instruments.tracing import recorded_modules
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding

CUT = 3  # tokens
MOVED = 1e-3  # of the logits' spread: shapes differ, and with them the order of sums


def lengths(patient: Patient) -> list[Finding]:
    """Of a row whose last tokens are left out, every other logit stays."""
    if not patient.looks_back_only:
        raise Skipped("it may look ahead")
    T = patient.found.T
    inputs = patient.inputs(2, salt=22)
    begun = replace(inputs, ids=inputs.ids[:, : T - CUT], labels=inputs.ids[:, : T - CUT])
    with torch.no_grad(), patient.quiet():
        with recorded_modules(patient.model) as whole:
            long_ = patient.run(inputs)[:, : T - CUT]
        try:
            with recorded_modules(patient.model) as part:
                short = patient.run(begun)
        except Exception:
            raise Skipped("it takes rows of one length only") from None
    moved = (long_ - short).abs().amax((0, 2)) / (float(short.std()) or 1.0)  # (T - CUT,)
    value = float(moved.max())
    if not value > MOVED:
        return []
    place = int(moved.argmax())
    witness = f"leaving out tokens {T - CUT} to {T - 1} moves logits {place} by {value:.1e} of their spread"
    where = place_of_call(first_off(part, whole, T, 0, T - CUT))
    return [finding("M21", witness, value=value, threshold=MOVED, where=where)]
