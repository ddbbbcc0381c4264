"""Feed-forwards that are only a matrix: one map widens, another narrows again, and nothing nonlinear stands between."""

from torch import Tensor, nn

from clearhead.doctor.checks.base import Finding, Skipped, Subject, finding, model_check
from clearhead.doctor.probes.flow import ADD, Flow, made_by, read_by
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.products import KEEPING, LINEAR, RESHAPING
from clearhead.doctor.probes.tracing import ModuleCall


@model_check("F01", "activations", order=320, needs=("finite",))
def activations(subject: Subject) -> list[Finding]:
    """An activation stands between the two linear maps of a feed-forward."""
    flow = Flow(subject.inside.calls)
    if sum(call.name in LINEAR for call in flow.calls) < 2:
        raise Skipped("it has no two linear maps")
    for index, second in enumerate(flow.calls):
        if second.name not in LINEAR or not made_by(second):
            continue
        first = _widened(flow, _read(second)[0], index, made_by(second)[0].shape[-1])
        if first is not None:
            names = [subject.place_of(call).module or "" for call in (first, second)]
            owner = names[0] if names[0] == names[1] else names[0].rpartition(".")[0]
            where = place_of_module(owner, subject.model.get_submodule(owner))
            return [finding("F01", f"{names[1]} reads the output of {names[0]}: they are one matrix", where=where)]
    return []


def _read(call: ModuleCall) -> list[Tensor]:
    """The hidden states that an operation is given, but no weights and no numbers."""
    parts = [part for part in read_by(call) if part.is_floating_point() and part.numel() > 1]
    return [part for part in parts if not isinstance(part, nn.Parameter)] or parts


def _widened(flow: Flow, tensor: Tensor, before: int, width: int) -> ModuleCall | None:
    """The map that made a tensor, or the first of a sum of them, if it is wider than what the map read, of this width.

    A small embedding that is widened, and read by a narrow map of keys, is meant to be two maps.
    """
    index = flow.maker(tensor, before)
    if index is None:
        return None
    call, parts = flow.calls[index], _read(flow.calls[index])
    if call.name in LINEAR:
        return call if parts[0].shape[-1] == width < tensor.shape[-1] else None
    is_sum = call.name in ADD
    if not is_sum and (len(parts) != 1 or call.name not in KEEPING | RESHAPING):
        return None
    first = None
    for part in parts:
        origin = _widened(flow, part, index, width)
        if origin is None:
            return None
        first = first or origin
    return first
