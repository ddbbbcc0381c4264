"""A norm works on each token by itself, whatever the model is meant to be."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.probes.norms import is_leaf_norm
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

MOVED = 1e-5  # of the largest number
FAINTER = 1e-3  # times a row, so that epsilon counts


@model_check(
    "N01",
    "norms",
    order=70,
    covers=("N01", "N02", "N06"),
    holds="each norm works on one token",
    needs=("finite", "deterministic"),
)
def norms(subject: Subject) -> list[Finding]:
    """Every norm is called again on what it read, with one token changed: no other may move."""
    own = [call for call in subject.module_calls if _is_leaf_norm(call)]
    problems: list[str] = []
    for call in own:
        with attempt() as attempted:
            value = _moves_others(subject, call)
        if attempted.failed:  # it takes more than one tensor, or another shape
            problems.append(attempted.kind)
            continue
        if value > MOVED and call.module is not None and not _is_meant_to(subject, call):
            where = place_of_call(call)
            witness = f"another token at one position moves what {call.name} makes of the others by {value:.1e}"
            return [finding((("N01", 0.9), ("N02", 0.1)), witness, value=value, threshold=MOVED, where=where)]
    if own and len(problems) == len(own):
        raise Skipped(f"none of its norms can be called by itself ({problems[0]})")
    return _undefined(subject, own)


def _is_leaf_norm(call: ModuleCall) -> bool:
    return is_leaf_norm(call.module) and bool(call.inputs)


def _is_meant_to(subject: Subject, call: ModuleCall) -> bool:
    """Whether one of torch's norms is given channels before tokens, as it is made for, where every token sees all."""
    over_all = isinstance(call.module, (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm))
    return over_all and call.inputs[0].shape[-1] == subject.calling.T and not subject.looks_back_only


def _moves_others(subject: Subject, call: ModuleCall) -> float:
    x = call.inputs[0]
    lengths = {subject.calling.T} | ({subject.calling.S} if subject.convention.has_source else set())
    axes = [axis for axis, size in enumerate(x.shape) if size in lengths]
    if x.dim() != 3 or len(axes) != 1 or call.module is None:
        return 0.0
    index = x.shape[axes[0]] // 2
    noise = torch.randn(x.select(axes[0], index).shape, generator=subject.generator(16)).to(x)
    other = x.clone()
    other.select(axes[0], index).add_(noise * float(x.std()))
    with subject.quiet():
        before, after = (call.module(tensor.to(subject.device)) for tensor in (x.clone(), other))
    if not isinstance(before, Tensor) or before.shape != x.shape:
        return 0.0
    change = (after - before).abs().cpu()
    change.select(axes[0], index).zero_()
    return float(change.max()) / (float(before.abs().max()) or 1.0)


def _undefined(subject: Subject, calls: Sequence[ModuleCall]) -> list[Finding]:
    """What a norm divides by is the root of the mean square, or of the variance, with epsilon under the root."""
    for call in calls:
        x = call.inputs[0]
        if call.module is None or x.dim() < 2 or type(call.module).__module__.startswith("torch."):
            continue
        oddity = _divisor(subject, call.module, x)
        if oddity:
            return [finding("N06", f"{call.name} {oddity}", where=place_of_call(call), status="warn")]
    return []


def _divisor(subject: Subject, norm: nn.Module, x: Tensor) -> str | None:
    """What is odd about it: read from the sizes that a row and a fainter copy of it come out with.

    A norm divides by d with d^2 = v + eps, where v is the row's mean square or variance. Where d = sqrt(v) + eps
    instead, or where v is divided by one less than the width, the two sizes say so.
    """
    width = x.shape[-1]
    row = torch.randn(1, 1, width, generator=subject.generator(19)).to(x)
    spread = row - row.mean()
    with attempt() as attempted, subject.quiet():
        shift = norm(torch.zeros_like(row))
        outputs = [norm(size * spread) - shift for size in (1.0, FAINTER)]
    if attempted.failed:  # it takes other shapes
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
    epsilons = {float(value) for name, value in vars(norm).items() if "eps" in name and isinstance(value, float)}
    if epsilons and any(abs(apart / value - 1) < 0.05 < abs(eps / value - 1) for value in epsilons):
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
