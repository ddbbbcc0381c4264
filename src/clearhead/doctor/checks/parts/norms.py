"""A norm works on each token by itself; and where it stands before an attention, keys and values are normalized too."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import STEADY, Causes, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.probes.norms import is_leaf_norm, is_norm
from clearhead.doctor.probes.replay import reach_of, replayed
from clearhead.doctor.probes.tensors import is_same, relative_change
from clearhead.doctor.probes.tracing import ModuleCall

MOVED = 1e-5  # of the largest number
FAINT = 1e-2  # times a row, so that epsilon counts
EXACT = 1e-4  # of a divisor
USUAL = (1e-5, 1e-6, 1e-8, 1e-12)  # epsilons, where the norm does not tell its own
REACHED = 1e-4  # of the largest number
QUERIES = "its own queries, which are normalized"
UNDONE = 0.05  # of the largest number: what a norm's epsilon may leave of a factor


@model_check("N01", "norms", order=70, covers=("N02", "N06"), needs=STEADY)
def norms(subject: Subject) -> list[Finding]:
    """Every norm works on one token at a time."""
    calls = [call for call in subject.module_calls if is_leaf_norm(call.module) and call.inputs]
    problems: list[str] = []
    if not any(_axis_of_tokens(subject, call.inputs[0]) is not None for call in calls):
        if unusual := _unusual(subject, calls):
            return unusual
        raise Skipped("no norm is given its tokens along one axis")
    for call in calls:
        axis = _axis_of_tokens(subject, call.inputs[0])
        if axis is None:
            continue
        with attempt() as attempted:
            x, index = call.inputs[0], call.inputs[0].shape[axis] // 2
            noise = torch.randn(x.select(axis, index).shape, generator=subject.generator(16)).to(x) * float(x.std())
            value = reach_of(call, axis, index, noise) or 0.0
        if attempted.failed:  # it takes more than one tensor, or another shape
            problems.append(attempted.kind)
        elif value > MOVED and not _is_meant_to(subject, call):
            witness = f"changing one position of the input of {call.name} moves its output at others, by {value:.1e}"
            where, causes = place_of_call(call), (("N01", 0.9), ("N02", 0.1))
            against = (
                "" if subject.kind == "bidirectional" else "its kind: later tokens move what is made of earlier ones"
            )
            return [finding(causes, witness, value=value, threshold=MOVED, where=where, against=against)]
    if calls and len(problems) == len(calls):
        raise Skipped(f"none of its norms can be called by itself ({problems[0]})")
    return _unusual(subject, calls)


def _axis_of_tokens(subject: Subject, x: Tensor) -> int | None:
    """The axis of a hidden state (B, T, D) or (T, B, D) along which its tokens lie."""
    if subject.convention.reads_pictures:  # whose parts are not its tokens
        return None
    lengths = {subject.calling.T} | ({subject.calling.S} if subject.convention.has_source else set())
    axes = [axis for axis, size in enumerate(x.shape) if size in lengths]
    return axes[0] if x.dim() == 3 and len(axes) == 1 else None


def _is_meant_to(subject: Subject, call: ModuleCall) -> bool:
    """Whether one of torch's norms is told to, or is given channels before tokens, in a model without causality."""
    over_all = isinstance(call.module, (nn.GroupNorm, nn.modules.instancenorm._InstanceNorm))
    is_told = isinstance(call.module, nn.LayerNorm) and len(call.module.normalized_shape) > 1
    return (is_told or (over_all and call.inputs[0].shape[-1] == subject.calling.T)) and not subject.looks_back_only


def _unusual(subject: Subject, calls: Sequence[ModuleCall]) -> list[Finding]:
    """A norm divides by the root of the mean square, or of the variance, with epsilon under the root."""
    for call in calls:
        if call.inputs[0].dim() > 1 and not type(call.module).__module__.startswith("torch."):
            oddity = _divisor(subject, call)
            if oddity:
                return [finding("N06", f"{call.name} {oddity}", where=place_of_call(call))]
    return []


def _divisor(subject: Subject, call: ModuleCall) -> str | None:
    """What is unusual about a norm's divisor, read from what it makes of a faint row, with the weights as they came.

    A norm divides by the root of v + eps, where v is the row's mean square or variance. None also if it scales the row.
    """
    width = call.inputs[0].shape[-1]
    row = torch.randn(1, 1, width, generator=subject.generator(19)).to(call.inputs[0])
    faint = FAINT * (row - row.mean())
    outputs: list[Tensor] = []
    with attempt():  # it may take other shapes
        outputs = replayed(replace(call, module=subject.fresh.get_submodule(call.name)), faint)
    if not outputs or outputs[0].shape != faint.shape:
        return None
    v, divisor = float(faint.double().square().mean()), float(faint.double().norm() / outputs[0].double().norm())
    unbiased, fewer = v * width / max(1, width - 1), f"divides the squares by {width - 1} instead of {width}"
    named = [value for name, value in vars(call.module).items() if "eps" in name and isinstance(value, float)]
    roots = [("", (v + eps) ** 0.5) for eps in named or USUAL]
    roots += [("adds epsilon to the root instead of under it", v**0.5 + eps) for eps in named]
    roots += [(fewer, root) for eps in named or USUAL for root in ((unbiased + eps) ** 0.5, unbiased**0.5 + eps)]
    return next((oddity or None for oddity, root in roots if abs(root / divisor - 1) < EXACT), None)


@model_check("N12", "query norms", order=80, covers=("N05",), needs=("finite",))
def query_norms(subject: Subject) -> list[Finding]:
    """Keys and values are normalized as queries are."""
    suspects = _suspects(subject.module_calls)
    for call, norm in suspects:
        axis = _axis_of_tokens(subject, norm.inputs[0])
        if axis is None:
            continue
        position = norm.inputs[0].shape[axis] // 2
        value = _reach_of_length(subject, call, norm, axis, position)
        if value > REACHED:
            witness = (
                f"{call.name} takes its queries from the output of {norm.name}, but keys or values from its input: "
                f"doubling token {position} of that input moves the output for other tokens by {value:.1e}"
            )
            where, names = place_of_call(call), {suspect.name for suspect, _ in suspects}
            alike = (other.name for other in subject.module_calls if type(other.module) is type(call.module))
            second = "its other attentions, which read one norm" if {*alike} - names else ""  # all may be meant so
            causes: Causes = (("N12", 0.9), ("N05", 0.1))
            return [
                finding(causes, witness, value=value, threshold=REACHED, where=where, against=QUERIES, second=second)
            ]
    return []


def _suspects(calls: Sequence[ModuleCall]) -> list[tuple[ModuleCall, ModuleCall]]:
    """Modules that are given a norm's output first, and beside it the input of the same norm; with that norm's call."""
    norms = [c for c in calls if c.module is not None and is_norm(c.module) and len(c.inputs) == len(c.outputs) == 1]
    return [
        (call, norm)
        for call in calls
        if call.module is not None and len(call.inputs) > 1
        for norm in norms
        if is_same(call.inputs[0], norm.outputs[0]) and any(is_same(other, norm.inputs[0]) for other in call.inputs[1:])
    ]


def _reach_of_length(subject: Subject, call: ModuleCall, norm: ModuleCall, axis: int, position: int) -> float:
    """How far a longer vector of one token moves what the module gives other tokens, of its largest number."""
    stream, longer = norm.inputs[0], norm.inputs[0].clone()
    longer.select(axis, position).mul_(2)
    (normed,) = replayed(norm, longer)
    if relative_change(norm.outputs[0], normed) > UNDONE:
        return 0.0  # it does not normalize each token's length
    outputs = _output_for(subject, call.name, stream, longer.to(subject.device))
    if outputs is None or outputs.shape != call.outputs[0].shape or outputs.shape[axis] != stream.shape[axis]:
        return 0.0
    change = (outputs - call.outputs[0]).abs()
    change.select(axis, position).zero_()
    return float(change.max()) / (float(outputs.abs().max()) or 1.0)


def _output_for(subject: Subject, name: str, stream: Tensor, longer: Tensor) -> Tensor | None:
    """The module's output where it is given `longer` instead of `stream`."""
    outputs: list[Tensor] = []

    def is_stream(value: object) -> bool:
        return isinstance(value, Tensor) and value.is_floating_point() and is_same(value.cpu(), stream)

    def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        if outputs or not any(map(is_stream, (*args, *named.values()))):
            return None
        swapped = tuple(longer if is_stream(value) else value for value in args)
        return swapped, {key: longer if is_stream(value) else value for key, value in named.items()}

    def after(_: nn.Module, args: tuple[object, ...], named: dict[str, object], output: object) -> None:
        output = output[0] if isinstance(output, (tuple, list)) else output
        if any(value is longer for value in (*args, *named.values())) and isinstance(output, Tensor):
            outputs.append(output.detach().to("cpu", copy=True))

    module = subject.model.get_submodule(name)
    with (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ):
        subject.run(subject.inputs(2))
    return outputs[0] if outputs else None
