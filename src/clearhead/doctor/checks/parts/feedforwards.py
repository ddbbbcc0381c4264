"""Feed-forwards that are only a matrix: two linear maps follow each other, and nothing nonlinear stands between."""

from torch import Tensor, nn

from clearhead.doctor.checks.base import Finding, Skipped, Subject, finding, model_check
from clearhead.doctor.probes.flow import ADD, Flow, made_by, read_by
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.products import CARRYING, LINEAR
from clearhead.doctor.probes.tracing import ModuleCall


@model_check("F01", "activations", order=320, needs=("finite",))
def activations(subject: Subject) -> list[Finding]:
    """An activation stands between the two linear maps of a feed-forward."""
    flow = subject.inside.flow
    if sum(call.name in LINEAR for call in flow.calls) < 2:
        raise Skipped("it has no two linear maps")
    for index, second in enumerate(flow.calls):
        if second.name not in LINEAR or not made_by(second):
            continue
        before = _linear_before(flow, _read(second)[0], index)
        if before is None:
            continue
        first = flow.calls[before]
        names = [subject.place_of(call).module or "" for call in (first, second)]
        parents = {name.rpartition(".")[0] for name in names}
        widths = [_width(_read(first)[0], first), _width(made_by(first)[0], first), _width(made_by(second)[0], second)]
        # a small embedding that is widened, and read by a narrow map of keys, is meant to be two maps
        is_wide = widths[0] == widths[2] < widths[1]
        is_square = len({*widths}) == len(parents) == 1 and names[0] != names[1]
        if is_wide or (is_square and _is_added_back(flow, index, _read(first)[0], before)):
            owner = names[0] if names[0] == names[1] else names[0].rpartition(".")[0]
            where = place_of_module(owner, subject.model.get_submodule(owner))
            return [finding("F01", f"{names[1]} reads the output of {names[0]}: they are one matrix", where=where)]
    return []


def _read(call: ModuleCall) -> list[Tensor]:
    """The hidden states that an operation is given, but no weights and no numbers."""
    parts = [part for part in read_by(call) if part.is_floating_point() and part.numel() > 1]
    return [part for part in parts if not isinstance(part, nn.Parameter)] or parts


def _width(tensor: Tensor, call: ModuleCall) -> int:
    return tensor.shape[-2 if call.name == "conv1d" else -1]


def _linear_before(flow: Flow, tensor: Tensor, before: int) -> int | None:
    """The map that made a tensor, or the first of a sum of them."""
    index = flow.maker(tensor, before)
    if index is None:
        return None
    call, parts = flow.calls[index], _read(flow.calls[index])
    if call.name in LINEAR:
        return index
    if call.name not in ADD and (len(parts) != 1 or call.name not in CARRYING):
        return None
    origins = [_linear_before(flow, part, index) for part in parts]
    read = {_read(flow.calls[origin])[0].data_ptr() for origin in origins if origin is not None}
    return None if None in origins or len(read) != 1 else origins[0]  # else they are several branches


def _is_added_back(flow: Flow, index: int, start: Tensor, before: int) -> bool:
    """Whether the output of an operation, as it is, is added to what another tensor was made from: a whole branch."""
    open_ = [index]
    while open_:
        for reader in flow.readers(open_.pop()):
            call = flow.calls[reader]
            if call.name in ADD and any(flow.comes_from(start, before, other) for other in read_by(call)):
                return True
            open_ += [reader] if call.name in CARRYING else []
    return False
