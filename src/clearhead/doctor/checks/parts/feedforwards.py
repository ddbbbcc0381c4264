"""Feed-forwards that are only a matrix: what widens and what narrows again, with nothing curved between."""

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import finding, model_check
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

STRAIGHT = 1e-4  # of the largest number: a sum goes to the sum of what its parts go to


@model_check(
    "F01",
    "activations",
    order=320,
    covers=("F01",),
    holds="no two linear maps of a feed-forward follow each other",
    needs=("finite",),
)
def activations(subject: Subject) -> list[Finding]:
    """No linear map reads what another wrote after widening it: the two would be one."""
    maps = [call for call in subject.module_calls if type(call.module) is nn.Linear and call.inputs]
    for number, second in enumerate(maps):
        first = next((call for call in maps[:number] if _is_read_as_written(call, second)), None)
        if first is not None:
            owner = first.name.rpartition(".")[0]
            module = subject.model.get_submodule(owner)
            where = place_of_module(owner, module)
            return [finding("F01", f"{second.name} reads what {first.name} wrote, bit for bit", where=where)]
    return _straight(subject)


def _is_read_as_written(first: ModuleCall, second: ModuleCall) -> bool:
    """Whether one map widens, and another narrows to the old width what the first wrote, as it was then.

    To the old width: a small embedding that is widened, and read by a narrow map of keys, is meant to be two maps.
    """
    writer, other = first.module, second.module
    assert isinstance(writer, nn.Linear)
    assert isinstance(other, nn.Linear)
    if not writer.out_features > writer.in_features or other.out_features != writer.in_features:
        return False
    written, value = first.outputs[0], second.inputs[0]
    return written.shape == value.shape and torch.equal(written, value)


def _straight(subject: Subject) -> list[Finding]:
    """A module that widens and narrows its input, and takes sums to sums."""
    for name, module in subject.model.named_modules():
        width = _feedforward_width(module)
        if not width:
            continue
        left, other = (torch.randn(1, 2, width, generator=subject.generator(salt)) for salt in (20, 21))
        with attempt() as attempted, subject.quiet():
            zero, first, second, both = (module(x) for x in (0 * left, left, other, left + other))
        if attempted.failed:  # it wants more than one tensor
            continue
        if not isinstance(both, Tensor) or both.shape != left.shape:
            continue
        value = float((first + second - zero - both).abs().max()) / (float(both.abs().max()) or 1.0)
        if value < STRAIGHT:
            witness = f"{name} of a sum is the sum of what it makes of the parts, but for {value:.0e}"
            where = place_of_module(name, module)
            return [finding("F01", witness, value=value, threshold=STRAIGHT, where=where)]
    return []


def _feedforward_width(module: nn.Module) -> int:
    """The width of its input, where two of its own maps lead from there to more and back; else 0."""
    maps = [child for child in module.children() if isinstance(child, nn.Linear)]
    wide = {(m.in_features, m.out_features) for m in maps if m.out_features > m.in_features}
    back = {(m.out_features, m.in_features) for m in maps if m.out_features < m.in_features}
    both = wide & back
    others = [child for child in module.children() if not isinstance(child, nn.Linear)]
    mixes = any(True for child in others for p in child.parameters() if p.dim() > 1)
    # a low-rank pair narrows first: it is meant to be a matrix
    first_is_wide = bool(maps) and maps[0].out_features > maps[0].in_features
    return next(iter(both))[0] if len(both) == 1 and not mixes and (first_is_wide or len(maps) > 2) else 0
