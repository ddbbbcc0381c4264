"""An attention whose queries are normalized and whose keys and values are the stream as it is."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import finding, model_check
from clearhead.doctor.probes.locations import place_of_call
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

MOVED = 1e-4  # of the largest number
UNDONE = 0.05  # of the largest number: what a norm's epsilon may leave of a factor


@model_check(
    "N12", "query norms", order=80, covers=("N12", "N05"), holds="keys are normalized as queries are", needs=("finite",)
)
def query_norms(subject: Subject) -> list[Finding]:
    """Where a norm stands before an attention, the length of a token's vector does not reach other tokens."""
    for call, norm in _suspects(subject.module_calls):
        value, position = _reach_of_length(subject, call, norm)
        if value > MOVED:
            where = place_of_call(call)
            witness = (
                f"{call.name} asks with what {norm.name} wrote and looks at what it read: token {position} made twice "
                f"as long before {norm.name} moves what becomes of other tokens by {value:.1e}"
            )
            return [finding((("N12", 0.9), ("N05", 0.1)), witness, value=value, threshold=MOVED, where=where)]
    return []


def _suspects(calls: Sequence[ModuleCall]) -> list[tuple[ModuleCall, ModuleCall]]:
    """Modules that are given a norm's output first, and beside it what the same norm read; with that norm's call."""
    norms = [call for call in calls if _is_simple_norm(call)]
    return [
        (call, norm)
        for call in calls
        if call.module is not None and len(call.inputs) > 1
        for norm in norms
        if _same(call.inputs[0], norm.outputs[0]) and any(_same(other, norm.inputs[0]) for other in call.inputs[1:])
    ]


def _is_simple_norm(call: ModuleCall) -> bool:
    return call.module is not None and is_norm(call.module) and len(call.inputs) == 1 and len(call.outputs) == 1


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)


def _reach_of_length(subject: Subject, call: ModuleCall, norm: ModuleCall) -> tuple[float, int]:
    """How far a longer vector of one token moves what the module makes of others, and which token it was."""
    stream, lengths = norm.inputs[0], (subject.calling.T, subject.calling.S)
    axes = [axis for axis, size in enumerate(stream.shape[:2]) if size in lengths]
    if stream.dim() != 3 or len(axes) != 1:
        return 0.0, 0
    axis, position = axes[0], stream.shape[axes[0]] // 2
    longer = stream.clone()
    longer.select(axis, position).mul_(2)
    assert norm.module is not None
    with subject.quiet():
        left = (norm.module(longer.to(subject.device)).cpu() - norm.outputs[0]).abs().max()
    if float(left) > UNDONE * float(norm.outputs[0].abs().max()):
        return 0.0, position  # it is no norm of each token's length
    outputs = _made_of(subject, call.name, stream, longer)
    if outputs is None or outputs.shape != call.outputs[0].shape or outputs.shape[axis] != stream.shape[axis]:
        return 0.0, position
    change = (outputs - call.outputs[0]).abs()
    change.select(axis, position).zero_()
    return float(change.max()) / (float(outputs.abs().max()) or 1.0), position


def _made_of(subject: Subject, name: str, stream: Tensor, longer: Tensor) -> Tensor | None:
    """What the module writes where it is given `longer` in the place of `stream`."""
    outputs: list[Tensor] = []
    longer = longer.to(subject.device)

    def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        if outputs or not any(_is(value, stream) for value in (*args, *named.values())):
            return None
        swapped = tuple(longer if _is(value, stream) else value for value in args)
        return swapped, {key: longer if _is(value, stream) else value for key, value in named.items()}

    def after(_: nn.Module, args: tuple[object, ...], named: dict[str, object], output: object) -> None:
        output = output[0] if isinstance(output, (tuple, list)) else output
        if any(value is longer for value in (*args, *named.values())) and isinstance(output, Tensor):
            outputs.append(output.detach().to("cpu", copy=True))

    module = subject.model.get_submodule(name)
    handles = [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]
    try:
        with subject.quiet():
            subject.run(subject.inputs(2))
    finally:
        for handle in handles:
            handle.remove()
    return outputs[0] if outputs else None


def _is(value: object, stream: Tensor) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and _same(value.cpu(), stream)
