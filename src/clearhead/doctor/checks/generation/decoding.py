"""Where decoding with a cache first departs from one call, and what that says about the cause."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import Causes
from clearhead.doctor.checks.generation.decoder import CachedDecoder
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.tensors import axis_of, relative_change
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops

OFF = 1e-3  # of the largest number: more than rounding
ALIVE = 1e-5


class Departure(NamedTuple):
    """The first module, in the first step, whose output differs from that in one call while its input does not."""

    call: ModuleCall
    begin: int  # of the tokens that the step reads
    end: int


def departure(decoder: CachedDecoder, inputs: Inputs, at_once: int) -> Departure | None:
    """Decode step by step beside one call, module by module."""
    model, T = decoder.subject.model, inputs.ids.shape[1]
    whole = decoder.subject.modules_called(inputs)
    _, cache = decoder.decode(inputs, at_once, until=0)
    for begin in range(T // 2, T, at_once):
        end = min(begin + at_once, T)
        with recorded_modules(model) as part:
            _, cache = decoder.step(inputs.ids[:, begin:end], inputs, cache, begin)
        call = first_off(part, whole, T, begin, end)
        if call is not None:
            return Departure(call, begin, end)
    return None


def first_off(
    part: Sequence[ModuleCall], whole: Sequence[ModuleCall], T: int, begin: int, end: int
) -> ModuleCall | None:
    """The first module that makes something else from a part of a row than from the same tokens of the whole row.

    Args:
        part: calls of modules that were given tokens `begin` to `end`.
        whole: the calls for all T tokens.
    """
    calls: dict[str, list[ModuleCall]] = {}
    for call in whole:
        calls.setdefault(call.name, []).append(call)
    for call in part:
        if calls.get(call.name):  # a step may leave out modules whose output its cache holds
            other = calls[call.name].pop(0)
            if _off(call.outputs, other.outputs, T, begin, end) and not _off(call.inputs, other.inputs, T, begin, end):
                return call
    return None


def _off(part: Sequence[Tensor], whole: Sequence[Tensor], T: int, begin: int, end: int) -> bool:
    """Whether the first tensor of a step differs from the same tokens of the whole row."""
    axis = axis_of(whole[0], T) if part and whole else None
    if axis is None or part[0].dim() != whole[0].dim() or part[0].shape[axis] != end - begin:
        return False
    second = whole[0].narrow(axis, begin, end - begin)
    return part[0].shape == second.shape and relative_change(second, part[0]) > OFF


def causes_of(decoder: CachedDecoder, first: Departure, at_once: int) -> Causes:
    """Which tokens the guilty module knows in the step, and how many keys it reads, compared with one call."""
    subject, length = decoder.subject, first.end - first.begin
    _, changed = subject.swapped()
    T, prefill = changed.ids.shape[1], changed.ids.shape[1] // 2
    _, cache = decoder.decode(changed, at_once, until=first.begin)
    with recorded_modules(subject.model) as part, recorded_ops() as ops:
        decoder.step(changed.ids[:, first.begin : first.end], changed, cache, first.begin)
    calls = (subject.modules_called(changed), part)
    in_one, in_step = (next(call for call in pass_ if call.name == first.call.name) for pass_ in calls)
    full, cached = _alive(in_one, T, first.end - 1), _alive(in_step, length, length - 1)
    known, missing = (tokens[: first.begin].nonzero().flatten().tolist() for tokens in (cached, full & ~cached))
    if missing and known == [0]:
        return (("K04", 0.8), ("K02", 0.2))  # a causal mask that begins at the cache's first token
    if missing:
        is_oldest = missing == [int(full.nonzero()[0])] and missing[0] < prefill
        return (("K03", 0.8), ("K02", 0.2)) if is_oldest else (("K02", 0.8), ("K01", 0.2))
    # in a deeper layer, what a key held reaches the step through those beside it
    all_keys, keys = _keys(subject.operations(changed), first, first.end - 1), _keys(ops.calls, first, -1)
    if keys < all_keys:
        return (("K02", 0.8), ("K01", 0.2)) if first.begin == prefill else (("K03", 0.7), ("K02", 0.3))
    return (("K01", 0.7), ("K02", 0.3))


def _keys(operations: Sequence[ModuleCall], first: Departure, query: int) -> float:
    """How many keys one query may read in the guilty module; infinite without an attention there."""
    inside = {id(module) for module in first.call.module.modules()} if first.call.module is not None else set()
    maps = (attention for attention in attentions(operations) if id(attention.call.module) in inside)
    return next((float(attention.allowed[query].sum()) for attention in maps), math.inf)


def _alive(call: ModuleCall, n: int, position: int) -> Tensor:
    """(T,), by row: whether that row's changed token moves the output at a position."""
    output = call.outputs[0]
    line = (output.select(1, position) if output.shape[1] == n else output).reshape(len(output), -1)
    moved = (line - line[-1:]).abs().amax(-1)
    return (moved > ALIVE * float(line.abs().max()))[:-1]
