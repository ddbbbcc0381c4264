"""Where decoding with a cache first departs from one call, and what that says about the cause."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import Causes
from clearhead.doctor.checks.generation.decoder import CachedDecoder
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.tensors import axis_of, relative_change
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops

OFF = 1e-3  # of the largest number: more than rounding
ALIVE = 1e-5


@dataclass(frozen=True)
class Departure:
    """The first module, in the first step, whose output differs from that in one call while its input does not.

    The step reads tokens `begin` to `end`; every step reads `at_once` tokens.
    """

    decoder: CachedDecoder
    inputs: Inputs
    call: ModuleCall
    begin: int
    end: int
    at_once: int

    def cache(self, inputs: Inputs) -> object:
        """The cache that all steps before this one leave."""
        return self.decoder.decode(inputs, self.at_once, until=self.begin)[1]

    def step(self, inputs: Inputs, cache: object) -> None:
        """Make this step again."""
        self.decoder.step(inputs.ids[:, self.begin : self.end], inputs, cache, self.begin)


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
            return Departure(decoder, inputs, call, begin, end, at_once)
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


def causes_of(first: Departure) -> Causes:
    """What the attention in the guilty module sees, compared with what it should see."""
    prefill = first.inputs.ids.shape[1] // 2
    whole, part = _keys_seen(first)
    if whole is not None and part is not None:
        T_q, T_k = part.shape
        if T_k > T_q and torch.equal(part, torch.ones(T_q, T_k, dtype=torch.bool).tril()):
            return (("K04", 0.8), ("K02", 0.2))
    full, cached = _tokens_known(first)
    missing = (full & ~cached).nonzero().flatten().tolist()
    if missing:
        oldest = int(full.nonzero()[0])
        is_oldest = missing == [oldest] and oldest < prefill
        return (("K03", 0.8), ("K02", 0.2)) if is_oldest else (("K02", 0.8), ("K01", 0.2))
    if whole is not None and part is not None and int(part[-1].sum()) < int(whole[first.end - 1].sum()):
        return (("K02", 0.8), ("K01", 0.2)) if first.begin == prefill else (("K03", 0.7), ("K02", 0.3))
    return (("K01", 0.7), ("K02", 0.3))


def _keys_seen(first: Departure) -> tuple[Tensor | None, Tensor | None]:
    """Which keys the guilty module's attention may look at, (T_q, T_k), in one call and in the step."""
    inside = {id(module) for module in first.call.module.modules()} if first.call.module is not None else set()

    def allowed(operations: Sequence[ModuleCall]) -> Tensor | None:
        maps = (attention for attention in attentions(operations) if id(attention.call.module) in inside)
        return next((attention.allowed for attention in maps), None)

    cache = first.cache(first.inputs)
    with recorded_ops() as ops:
        first.step(first.inputs, cache)
    return allowed(first.decoder.subject.operations(first.inputs)), allowed(ops.calls)


def _tokens_known(first: Departure) -> tuple[Tensor, Tensor]:
    """Which tokens move the guilty module's output for the step's last token, (T,), in one call and in the step."""
    subject, length = first.decoder.subject, first.end - first.begin
    _, changed = subject.swapped()
    cache = first.cache(changed)
    with recorded_modules(subject.model) as part:
        first.step(changed, cache)
    whole = subject.modules_called(changed)
    in_one, in_step = (next(call for call in calls if call.name == first.call.name) for calls in (whole, part))
    return _alive(in_one, changed.ids.shape[1], first.end - 1), _alive(in_step, length, length - 1)


def _alive(call: ModuleCall, n: int, position: int) -> Tensor:
    """(T,), by row: whether that row's changed token moves the output at a position."""
    output = call.outputs[0]
    line = (output.select(1, position) if output.shape[1] == n else output).reshape(len(output), -1)
    moved = (line - line[-1:]).abs().amax(-1)
    return (moved > ALIVE * float(line.abs().max()))[:-1]
