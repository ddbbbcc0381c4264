"""Heads that are split and merged without moving their axis: tokens then hold pieces of each other."""

import torch

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.findings import Finding, Where
from clearhead.doctor.instruments.attention import attentions
from clearhead.doctor.instruments.layout import scrambled
from clearhead.doctor.instruments.tracing import home_of, recorded_ops
from clearhead.doctor.patient import Patient

ROWS = 19  # a size that no other axis is likely to have


def layouts(patient: Patient) -> list[Finding]:
    """No view or reshape puts numbers of one token in the place of another."""
    inputs = patient.inputs(1).rows(torch.zeros(ROWS, dtype=torch.long))
    try:
        with torch.no_grad(), recorded_ops() as ops:
            patient.run(inputs)
    except Exception as error:
        raise Skipped(f"its operations cannot be watched ({type(error).__name__})") from None
    sizes = [patient.found.T] + ([patient.found.S] if patient.convention.has_source else [])
    found = [spot for size in sizes if (spot := scrambled(ops.calls, size, ROWS)) is not None]
    if not found:
        return []
    spot = min(found, key=lambda one: one.index)
    behind = [attention.index for attention in attentions(ops.calls) if attention.index < spot.index]
    merging = bool(behind) and spot.index - behind[-1] <= 6
    causes = (("A05", 0.9), ("A04", 0.1)) if merging else (("A04", 0.9), ("A05", 0.1))
    witness = f"after '{spot.call.name}' position {spot.place} holds numbers of token {spot.token}"
    module, cls = owner_of(patient, spot.call.file, spot.call.line)
    where = Where(module, cls, spot.call.file, spot.call.line, spot.call.name)
    return [finding(causes, witness, where=where)]


def owner_of(patient: Patient, file: str | None, line: int | None) -> tuple[str | None, str | None]:
    """The first module whose class the line belongs to."""
    import inspect

    for name, module in patient.model.named_modules():
        if home_of(module)[0] != file or file is None or line is None:
            continue
        try:
            lines, start = inspect.getsourcelines(type(module))
        except (OSError, TypeError):
            continue
        if start <= line < start + len(lines):
            return name, type(module).__name__
    return None, None
