"""The exact checks once more, with other noise, other tokens, other lengths and other numbers of rows."""

from collections.abc import Callable
from dataclasses import replace

import torch

from clearhead.doctor.checks.base import SOUND, Skipped, finding, model_check
from clearhead.doctor.checks.basics import ROW_FAULTS, rows
from clearhead.doctor.checks.dependence.dependencies import DEPENDENCY_FAULTS, dependencies
from clearhead.doctor.checks.dependence.paths import leaks_on
from clearhead.doctor.checks.padding.paddings import PADDING_FAULTS, paddings
from clearhead.doctor.preparation import prepare
from clearhead.doctor.probes.dependency import change_of
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

AGAIN_FAULTS = tuple(dict.fromkeys((*DEPENDENCY_FAULTS, *ROW_FAULTS, *PADDING_FAULTS)))

AGAIN = {"rows": rows, "dependencies": dependencies, "paddings": paddings}  # by the names of these checks
SEEDS = 3
LENGTHS = (*range(2, 13), 16, 21, 28, 32, 33, 45, 64, 65, 96, 129)
SIZES = (2, 7, 16)  # of batches
TOLERANCE = 1e-3  # of the logits' spread: shapes differ, and with them the order of sums


@model_check(
    "M01",
    "again",
    order=340,
    covers=AGAIN_FAULTS,
    holds="the same holds for three more draws of weights and tokens, for a row alone, and in 22 lengths",
    needs=SOUND,
    level="deep",
    of_tokens=True,
)
def again(subject: Subject) -> list[Finding]:
    """What holds for one draw of weights and tokens has to hold for each."""
    spec = replace(subject.spec, kind=subject.kind, time_first=subject.convention.time_first)
    for seed in range(subject.seed + 1, subject.seed + 1 + SEEDS):
        other = prepare(subject.original, spec, subject.level, seed)
        for name, check in AGAIN.items():
            findings = [] if name in subject.failed else _made(check, other)
            if findings:
                return [_with(fault, f"with seed {seed} ") for fault in findings]
    subject.journal.paths.append(f"{SEEDS} more draws of weights and tokens")
    return _alone(subject) or _lengths(subject)


def _made(check: Callable[[Subject], list[Finding]], subject: Subject) -> list[Finding]:
    try:
        return check(subject)
    except Skipped:
        return []


def _with(fault: Finding, prefix: str) -> Finding:
    return replace(fault, evidence=replace(fault.evidence, witness=prefix + fault.evidence.witness))


def _alone(subject: Subject) -> list[Finding]:
    """A row alone and in batches of several sizes."""
    for size in SIZES:
        inputs = subject.inputs(size, salt=41)
        with torch.no_grad():
            beside = subject.run(inputs)[:1]
            alone = subject.run(inputs.rows(torch.tensor([0])))
        moved = change_of(beside, alone)
        if moved > TOLERANCE:
            witness = f"row 0 alone and in a batch of {size} has logits that differ by {moved:.1e} of their spread"
            causes = (("A10", 0.5), ("N02", 0.3), ("P02", 0.2))
            return [finding(causes, witness, value=moved, threshold=TOLERANCE)]
    subject.journal.paths.append(f"rows alone and in batches of {', '.join(map(str, SIZES))}")
    return []


def _lengths(subject: Subject) -> list[Finding]:
    if not subject.looks_back_only:
        return []
    for T in LENGTHS:
        findings = leaks_on(subject, f"rows of {T} tokens", subject.run, T)
        if findings:
            return findings
    return []
