"""The exact checks once more, with other noise, tokens and lengths."""

from contextlib import suppress
from dataclasses import replace

from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Subject, model_check
from clearhead.doctor.checks.basics import ROW_FAULTS, rows
from clearhead.doctor.checks.dependence.dependencies import DEPENDENCY_FAULTS, dependencies
from clearhead.doctor.checks.dependence.paths import leaks_on
from clearhead.doctor.checks.padding.paddings import PADDING_FAULTS, paddings
from clearhead.doctor.preparation import prepare

AGAIN = {"rows": rows, "dependencies": dependencies, "paddings": paddings}  # by the names of these checks
FAULTS = (*DEPENDENCY_FAULTS, *ROW_FAULTS, *PADDING_FAULTS)
SEEDS = 3
LENGTHS = (*range(2, 13), 16, 21, 28, 32, 33, 45, 64, 65, 96, 129)


@model_check("M01", "again", order=340, covers=FAULTS, needs=SOUND, level="deep", of_tokens=True)
def again(subject: Subject) -> list[Finding]:
    """The same holds for three more draws of weights and tokens, and for rows of 22 lengths."""
    spec = replace(subject.spec, kind=subject.kind, time_first=subject.convention.time_first)
    for seed in range(subject.seed + 1, subject.seed + 1 + SEEDS):
        other = prepare(subject.original, spec, subject.level, seed)
        for check in (check for name, check in AGAIN.items() if name not in subject.failed):
            with suppress(Skipped):
                if faults := check(other):
                    return [_with_seed(fault, seed) for fault in faults]
    subject.journal.paths.append(f"{SEEDS} more draws of weights and tokens")
    return _lengths(subject)


def _with_seed(fault: Finding, seed: int) -> Finding:
    return replace(fault, evidence=replace(fault.evidence, witness=f"with seed {seed} {fault.evidence.witness}"))


def _lengths(subject: Subject) -> list[Finding]:
    for T in LENGTHS if subject.looks_back_only else ():
        if findings := leaks_on(subject, f"rows of {T} tokens", subject.run, T):
            return findings
    return []
