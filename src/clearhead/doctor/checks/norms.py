"""A norm works on each token by itself, whatever the model is meant to be."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.doctor.checks.base import finding
from clearhead.doctor.checks.causes import is_norm
from clearhead.doctor.instruments.tracing import Call, home_of, recorded_modules
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding, Where

MOVED = 1e-5  # of the largest number


def norms(patient: Patient) -> list[Finding]:
    """Every norm is called again on what it read, with one token changed: no other may move."""
    with patient.quiet(), recorded_modules(patient.model) as calls:
        patient.run(patient.inputs(3))
    for call in calls:
        if (
            call.module is None
            or not is_norm(call.module)
            or not call.inputs
            or any(True for _ in call.module.children())
        ):
            continue
        value = _moves_others(patient, call)
        if value > MOVED:
            file, line = home_of(call.module)
            where = Where(call.name, type(call.module).__name__, file or call.file, line or call.line)
            witness = f"another token at one position moves what {call.name} makes of the others by {value:.1e}"
            return [finding((("N01", 0.9), ("N02", 0.1)), witness, value=value, threshold=MOVED, where=where)]
    return _queries_only(calls)


def _queries_only(calls: Sequence[Call]) -> list[Finding]:
    """An attention that is given a norm's output to ask with, and the same norm's input to look at."""
    made = [(call, call.inputs[0], call.outputs[0]) for call in calls if _is_simple_norm(call)]
    for call in calls:
        if call.module is None or len(call.inputs) < 2:
            continue
        asked, *looked_at = call.inputs
        for norm, before, after in made:
            if any(_same(asked, after) and _same(other, before) for other in looked_at):
                file, line = home_of(call.module)
                where = Where(call.name, type(call.module).__name__, file or call.file, line or call.line)
                witness = f"{call.name} asks with what {norm.name} wrote, and looks at what {norm.name} read"
                return [finding("N12", witness, where=where, status="warn")]
    return []


def _is_simple_norm(call: Call) -> bool:
    return call.module is not None and is_norm(call.module) and len(call.inputs) == 1 and len(call.outputs) == 1


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _moves_others(patient: Patient, call: Call) -> float:
    x, T = call.inputs[0], patient.found.T
    axes = [axis for axis, size in enumerate(x.shape) if size == T]
    if x.dim() != 3 or len(axes) != 1 or call.module is None:
        return 0.0
    place = T // 2
    noise = torch.randn(x.select(axes[0], place).shape, generator=patient.generator(16)).to(x)
    other = x.clone()
    other.select(axes[0], place).add_(noise * float(x.std()))
    try:
        with patient.quiet():
            before, after = call.module(x.clone()), call.module(other)
    except Exception:  # it takes more than one tensor
        return 0.0
    if not isinstance(before, Tensor) or before.shape != x.shape:
        return 0.0
    change = (after - before).abs()
    change.select(axes[0], place).zero_()
    return float(change.max()) / (float(before.abs().max()) or 1.0)
