"""Where decoding with a cache first departs from one call, and what that says of the cause."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import Causes
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.dependency import swapped_rows
from clearhead.doctor.probes.tracing import ModuleCall, recorded_modules, recorded_ops
from clearhead.doctor.subject import Subject

OFF = 1e-3  # of the largest number: other numbers, not other rounding
ALIVE = 1e-5


class Steps(Protocol):
    """A model with a cache: what the first call is given, and one call."""

    subject: Subject

    def start(self, inputs: Inputs) -> object: ...
    def step(self, ids: Tensor, inputs: Inputs, cache: object, begin: int) -> tuple[Tensor, object]: ...


@dataclass(frozen=True)
class Departure:
    """The first module of the first step whose output differs from that in one call, while its input does not."""

    call: ModuleCall
    begin: int  # the first token of that step
    end: int
    is_first_step: bool


def departure(steps: Steps, inputs: Inputs, prefill: int, at_once: int) -> Departure | None:
    """Decode in pieces beside one call, module by module."""
    model, T = steps.subject.model, inputs.ids.shape[1]
    whole = steps.subject.modules_called(inputs)
    _, cache = steps.step(inputs.ids[:, :prefill], inputs, steps.start(inputs), 0)
    for begin in range(prefill, T, at_once):
        end = min(begin + at_once, T)
        with recorded_modules(model) as part:
            _, cache = steps.step(inputs.ids[:, begin:end], inputs, cache, begin)
        first = first_off(part, whole, T, begin, end)
        if first is not None:
            return Departure(first, begin, end, begin == prefill)
    return None


def first_off(part: list[ModuleCall], whole: list[ModuleCall], T: int, begin: int, end: int) -> ModuleCall | None:
    """The first module that makes something else of a part of a row than of the same tokens of the whole row.

    Args:
        part: calls of modules that were given tokens begin to end.
        whole: the calls for all T tokens.
    """
    for first, second in _paired(part, whole):
        if _off(first.outputs, second.outputs, T, begin, end) and not _off(first.inputs, second.inputs, T, begin, end):
            return first
    return None


def _paired(part: list[ModuleCall], whole: list[ModuleCall]) -> Iterator[tuple[ModuleCall, ModuleCall]]:
    """The calls of one module, the first with the first: a step may leave out what its cache holds."""
    calls: dict[str, list[ModuleCall]] = {}
    for call in whole:
        calls.setdefault(call.name, []).append(call)
    for call in part:
        if calls.get(call.name):
            yield call, calls[call.name].pop(0)


def _off(part: list[Tensor], whole: list[Tensor], T: int, begin: int, end: int) -> bool:
    """Whether the first tensor of a step differs from the same tokens of the whole."""
    if not part or not whole:
        return False
    first, second = part[0], whole[0]
    axes = [axis for axis, size in enumerate(second.shape) if size == T]
    if len(axes) != 1 or first.dim() != second.dim() or first.shape[axes[0]] != end - begin:
        return False
    second = second.narrow(axes[0], begin, end - begin)
    return first.shape == second.shape and float((first - second).abs().max()) > OFF * float(second.abs().max())


def causes_of(steps: Steps, inputs: Inputs, first: Departure, prefill: int, at_once: int) -> Causes:
    """What the attention in the guilty module sees, against what it should."""
    whole, part = _seen_in(steps, inputs, first, prefill, at_once)
    if whole is not None and part is not None:
        T_q, T_k = part.shape
        if T_k > T_q and torch.equal(part, torch.ones(T_q, T_k, dtype=torch.bool).tril()):
            return (("K04", 0.8), ("K02", 0.2))
    full, cached = _known(steps, first, prefill, at_once)
    missing = (full & ~cached).nonzero().flatten().tolist()
    if missing:
        oldest = int(full.nonzero()[0])
        return (
            (("K03", 0.8), ("K02", 0.2)) if missing == [oldest] and oldest < prefill else (("K02", 0.8), ("K01", 0.2))
        )
    if whole is not None and part is not None:
        expected, got = int(whole[first.end - 1].sum()), int(part[-1].sum())
        if got < expected:
            return (("K02", 0.8), ("K01", 0.2)) if first.is_first_step else (("K03", 0.7), ("K02", 0.3))
    return (("K01", 0.7), ("K02", 0.3))


def _seen_in(
    steps: Steps, inputs: Inputs, first: Departure, prefill: int, at_once: int
) -> tuple[Tensor | None, Tensor | None]:
    """Which keys the guilty module's attention may look at, in one call and in the step."""
    inside = {id(module) for module in first.call.module.modules()} if first.call.module is not None else set()
    operations = steps.subject.operations(inputs)
    whole = next(
        (attention.allowed for attention in attentions(operations) if id(attention.call.module) in inside), None
    )
    cache = _cache_before(steps, inputs, first, prefill, at_once)
    with recorded_ops() as ops:
        steps.step(inputs.ids[:, first.begin : first.end], inputs, cache, first.begin)
    part = next((attention.allowed for attention in attentions(ops.calls) if id(attention.call.module) in inside), None)
    return whole, part


def _known(steps: Steps, first: Departure, prefill: int, at_once: int) -> tuple[Tensor, Tensor]:
    """Which tokens move what the guilty module writes for the step's last token, in one call and step by step, (T,)."""
    subject = steps.subject
    _, changed, _ = swapped_rows(subject.inputs(), subject.pool(), subject.generator(1))
    whole = subject.modules_called(changed)
    cache = _cache_before(steps, changed, first, prefill, at_once)
    with recorded_modules(subject.model) as part:
        steps.step(changed.ids[:, first.begin : first.end], changed, cache, first.begin)
    T = changed.ids.shape[1]
    return _alive(whole, first, T, first.end - 1), _alive(
        part, first, first.end - first.begin, first.end - first.begin - 1
    )


def _cache_before(steps: Steps, inputs: Inputs, first: Departure, prefill: int, at_once: int) -> object:
    """What the steps before the departure leave in the cache."""
    _, cache = steps.step(inputs.ids[:, :prefill], inputs, steps.start(inputs), 0)
    for begin in range(prefill, first.begin, at_once):
        _, cache = steps.step(inputs.ids[:, begin : begin + at_once], inputs, cache, begin)
    return cache


def _alive(calls: list[ModuleCall], first: Departure, n: int, position: int) -> Tensor:
    """(T,), by row: whether that row's changed token moves the output at a place."""
    call = next(call for call in calls if call.name == first.call.name)
    output = call.outputs[0]
    rows = output.shape[0]
    line = output.select(1, position).reshape(rows, -1) if output.shape[1] == n else output.reshape(rows, -1)
    moved = (line - line[-1:]).abs().amax(-1)
    return (moved > ALIVE * float(line.abs().max()))[:-1]
