"""The exact checks once more, with other noise, other tokens, other lengths and other numbers of rows."""

from collections.abc import Callable
from dataclasses import replace

import torch

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.checks.basics import rows
from clearhead.doctor.checks.dependence.dependencies import dependencies
from clearhead.doctor.checks.dependence.paths import leaks_on
from clearhead.doctor.checks.padding.paddings import paddings
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding

SEEDS = 3
LENGTHS = (*range(2, 13), 16, 21, 28, 32, 33, 45, 64, 65, 96, 129)
SIZES = (2, 7, 16)  # of batches
TOLERANCE = 1e-3  # of the logits' spread: shapes differ, and with them the order of sums


def again(patient: Patient) -> list[Finding]:
    """What holds for one draw of weights and tokens has to hold for each."""
    told = replace(patient.spec, kind=patient.kind, time_first=patient.convention.time_first)
    for seed in range(patient.seed + 1, patient.seed + 1 + SEEDS):
        other = Patient(patient.original, told, patient.level, seed)
        for check in (rows, dependencies, paddings):
            found = [] if check.__name__ in patient.failed else _made(check, other)
            if found:
                return [_with(one, f"with seed {seed} ") for one in found]
    patient.paths.append(f"{SEEDS} more draws of weights and tokens")
    return _alone(patient) or _lengths(patient)


def _made(check: Callable[[Patient], list[Finding]], patient: Patient) -> list[Finding]:
    try:
        return check(patient)
    except Skipped:
        return []


def _with(one: Finding, words: str) -> Finding:
    return replace(one, evidence=replace(one.evidence, witness=words + one.evidence.witness))


def _alone(patient: Patient) -> list[Finding]:
    """A row alone and in batches of several sizes."""
    for size in SIZES:
        inputs = patient.inputs(size, salt=41)
        with torch.no_grad():
            beside = patient.run(inputs)[:1]
            alone = patient.run(inputs.rows(torch.tensor([0])))
        moved = float((beside - alone).abs().max()) / (float(beside.std()) or 1.0)
        if moved > TOLERANCE:
            witness = f"row 0 alone and in a batch of {size} has logits that differ by {moved:.1e} of their spread"
            causes = (("A10", 0.5), ("N02", 0.3), ("P02", 0.2))
            return [finding(causes, witness, value=moved, threshold=TOLERANCE)]
    patient.paths.append(f"rows alone and in batches of {', '.join(map(str, SIZES))}")
    return []


def _lengths(patient: Patient) -> list[Finding]:
    if not patient.looks_back_only:
        return []
    for T in LENGTHS:
        found = leaks_on(patient, f"rows of {T} tokens", patient.run, T)
        if found:
            return found
    return []
