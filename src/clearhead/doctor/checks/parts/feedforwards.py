"""Feed-forwards that are only a matrix: one map widens, another narrows again, and nothing nonlinear stands between."""

import torch
from torch import nn

from clearhead.doctor.checks.base import Finding, Subject, attempt, finding, model_check
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.replay import replayed
from clearhead.doctor.probes.tensors import is_same
from clearhead.doctor.probes.tracing import ModuleCall

STRAIGHT = 1e-4  # of the largest number: a linear map takes a sum to the sum of its parts


@model_check("F01", "activations", order=320, needs=("finite",))
def activations(subject: Subject) -> list[Finding]:
    """An activation stands between the two linear maps of a feed-forward."""
    maps = [call for call in subject.module_calls if type(call.module) is nn.Linear and call.inputs]
    for number, second in enumerate(maps):
        first = next((call for call in maps[:number] if _follows(call, second)), None)
        if first is not None:
            owner = first.name.rpartition(".")[0]
            where = place_of_module(owner, subject.model.get_submodule(owner))
            return [finding("F01", f"{second.name} reads the output of {first.name} bit for bit", where=where)]
    return _straight(subject)


def _follows(first: ModuleCall, second: ModuleCall) -> bool:
    """Whether one map widens, and another reads that very output and narrows it to the old width.

    A small embedding that is widened, and read by a narrow map of keys, is meant to be two maps.
    """
    assert isinstance(first.module, nn.Linear)
    assert isinstance(second.module, nn.Linear)
    widens = first.module.out_features > first.module.in_features == second.module.out_features
    return widens and is_same(first.outputs[0], second.inputs[0])


def _straight(subject: Subject) -> list[Finding]:
    """A module that widens and narrows its input, and takes sums to sums."""
    for name, module in subject.model.named_modules():
        width = _feedforward_width(module)
        if not width:
            continue
        left, right = (torch.randn(1, 2, width, generator=subject.generator(salt)) for salt in (20, 21))
        with attempt() as attempted:
            outputs = replayed(ModuleCall(name, [], [], module), 0 * left, left, right, left + right)
        if attempted.failed or not outputs or outputs[0].shape != left.shape:  # it wants more than one tensor
            continue
        zero, first, second, both = outputs
        value = float((first + second - zero - both).abs().max()) / (float(both.abs().max()) or 1.0)
        if value < STRAIGHT:
            witness = f"{name} of a sum is the sum of {name} of its parts, up to {value:.0e}: it is linear"
            where = place_of_module(name, module)
            return [finding("F01", witness, value=value, threshold=STRAIGHT, where=where)]
    return []


def _feedforward_width(module: nn.Module) -> int:
    """The width of its input, if two of its own maps lead from there to more and back; else 0."""
    maps = [child for child in module.children() if isinstance(child, nn.Linear)]
    wide = {(m.in_features, m.out_features) for m in maps if m.out_features > m.in_features}
    both = wide & {(m.out_features, m.in_features) for m in maps if m.out_features < m.in_features}
    others = [child for child in module.children() if not isinstance(child, nn.Linear)]
    if len(both) != 1 or any(p.dim() > 1 for child in others for p in child.parameters()):
        return 0
    # a low-rank pair narrows first: it is meant to be a matrix
    first_widens = maps[0].out_features > maps[0].in_features
    return next(iter(both))[0] if first_widens or len(maps) > 2 else 0
