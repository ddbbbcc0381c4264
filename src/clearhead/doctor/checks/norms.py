"""A norm works on each token by itself, whatever the model is meant to be."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import finding
from clearhead.doctor.checks.causes import is_norm
from clearhead.doctor.conventions.outputs import tensors
from clearhead.doctor.instruments.tracing import Call, home_of, recorded_modules
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding, Where

MOVED = 1e-5  # of the largest number
FAINTER = 1e-3  # times a row, so that epsilon counts


def norms(patient: Patient) -> list[Finding]:
    """Every norm is called again on what it read, with one token changed: no other may move."""
    with patient.quiet(), recorded_modules(patient.model) as calls:
        patient.run(patient.inputs(3))
    own = [call for call in calls if _is_leaf_norm(call)]
    for call in own:
        value = _moves_others(patient, call)
        if value > MOVED and call.module is not None:
            file, line = home_of(call.module)
            where = Where(call.name, type(call.module).__name__, file or call.file, line or call.line)
            witness = f"another token at one position moves what {call.name} makes of the others by {value:.1e}"
            return [finding((("N01", 0.9), ("N02", 0.1)), witness, value=value, threshold=MOVED, where=where)]
    return _queries_only(patient, calls) or _undefined(patient, own)


def _is_leaf_norm(call: Call) -> bool:
    module = call.module
    return module is not None and is_norm(module) and bool(call.inputs) and not any(True for _ in module.children())


def _queries_only(patient: Patient, calls: Sequence[Call]) -> list[Finding]:
    """An attention that is given a norm's output to ask with, and the same norm's input to look at."""
    made = [(call, call.inputs[0], call.outputs[0]) for call in calls if _is_simple_norm(call)]
    for call in calls:
        if call.module is None or len(call.inputs) < 2:
            continue
        asked, *looked_at = call.inputs
        for norm, before, after in made:
            if any(_same(asked, after) and _same(other, before) for other in looked_at) and _mixes(
                patient, call, before
            ):
                file, line = home_of(call.module)
                where = Where(call.name, type(call.module).__name__, file or call.file, line or call.line)
                witness = f"{call.name} asks with what {norm.name} wrote, and looks at what {norm.name} read"
                return [finding((("N12", 0.9), ("N05", 0.1)), witness, where=where)]
    return []


def _mixes(patient: Patient, call: Call, given: Tensor) -> bool:
    """Whether a module lets one token of what it is given reach another position: a residual stays in its own."""
    axes = [axis for axis, size in enumerate(given.shape) if size == patient.found.T]
    assert call.module is not None
    if len(axes) != 1 or not call.outputs or call.outputs[0].shape != given.shape:
        return True
    place, made = patient.found.T // 2, []
    changed = given.clone()
    changed.select(axes[0], place).neg_()

    def swap(value: Any) -> Any:
        return changed if isinstance(value, Tensor) and _same(value, given) else value

    def before(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return tuple(map(swap, given)), {name: swap(value) for name, value in named.items()}

    handles = [
        call.module.register_forward_pre_hook(before, with_kwargs=True),
        call.module.register_forward_hook(lambda module, given, output: made.extend(tensors(output)[:1])),
    ]
    try:
        with patient.quiet():
            patient.run(patient.inputs(3))
    finally:
        for handle in handles:
            handle.remove()
    moved = (made[0] - call.outputs[0]).abs()
    moved.select(axes[0], place).zero_()
    return float(moved.max()) > MOVED * float(call.outputs[0].abs().max())


def _is_simple_norm(call: Call) -> bool:
    return call.module is not None and is_norm(call.module) and len(call.inputs) == 1 and len(call.outputs) == 1


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _moves_others(patient: Patient, call: Call) -> float:
    x = call.inputs[0]
    lengths = {patient.found.T} | ({patient.found.S} if patient.convention.has_source else set())
    axes = [axis for axis, size in enumerate(x.shape) if size in lengths]
    if x.dim() != 3 or len(axes) != 1 or call.module is None:
        return 0.0
    place = x.shape[axes[0]] // 2
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


def _undefined(patient: Patient, calls: Sequence[Call]) -> list[Finding]:
    """What a norm divides by is the root of the mean square, or of the variance, with epsilon under the root."""
    for call in calls:
        x = call.inputs[0]
        if call.module is None or x.dim() < 2 or type(call.module).__module__.startswith("torch."):
            continue
        said = _divisor(patient, call.module, x)
        if said:
            where = Where(call.name, type(call.module).__name__, *home_of(call.module))
            return [finding("N06", f"{call.name} {said}", where=where, status="warn")]
    return []


def _divisor(patient: Patient, norm: nn.Module, x: Tensor) -> str | None:
    """What is odd about it: read from the sizes that a row and a fainter copy of it come out with.

    A norm divides by d with d^2 = v + eps, where v is the row's mean square or variance. Where d = sqrt(v) + eps
    instead, or where v is divided by one less than the width, the two sizes say so.
    """
    width = x.shape[-1]
    row = torch.randn(1, 1, width, generator=patient.generator(19)).to(x)
    spread = row - row.mean()
    try:
        with patient.quiet():
            shift = norm(torch.zeros_like(row))
            outputs = [norm(size * spread) - shift for size in (1.0, FAINTER)]
    except Exception:  # it takes other shapes
        return None
    if any(not isinstance(y, Tensor) or y.shape != row.shape or not y.isfinite().all() for y in (*outputs, shift)):
        return None
    v = float(spread.double().square().mean())
    loud, faint = (float(y.double().norm()) for y in outputs)
    if not loud or not faint:
        return None
    # with gains g: |y| = s |g x| / d(s); at s = 1 epsilon hardly counts, so |g x| = loud d(1)
    eps = v * FAINTER**2 * ((loud / faint) ** 2 - 1)  # if it stands under the root
    apart = v**0.5 * FAINTER * (loud / faint - 1)  # if it stands beside the root
    told = {float(value) for name, value in vars(norm).items() if "eps" in name and isinstance(value, float)}
    if told and any(abs(apart / value - 1) < 0.05 < abs(eps / value - 1) for value in told):
        return "adds epsilon to the root, and not to what stands under it"
    unbiased = _ratio(norm, spread, outputs[0], v)
    if unbiased is not None and abs(unbiased - (width - 1) / width) < 0.1 / width:
        return f"divides the squares by {width - 1} and not by {width}"
    return None


def _ratio(norm: nn.Module, spread: Tensor, output: Tensor, v: float) -> float | None:
    """The square of what comes out, without the gain, against what a norm gives: 1 if it is one."""
    gains = [p for p in norm.parameters(recurse=False) if p.numel() == spread.shape[-1]]
    ratios = [float((output.double() / (gain.double() * spread.double() / v**0.5)).square().median()) for gain in gains]
    return min(ratios, key=lambda ratio: abs(ratio - 1)) if ratios else None
