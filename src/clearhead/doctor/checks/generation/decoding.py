"""Where decoding with a cache first departs from one call, and what that says of the cause."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import Causes
from clearhead.doctor.probes.attention import attentions
from clearhead.doctor.probes.dependency import swapped_rows
from clearhead.doctor.probes.tracing import Call, recorded_modules, recorded_ops
from clearhead.doctor.subject import Subject

OFF = 1e-3  # of the largest number: other numbers, not other rounding
ALIVE = 1e-5


class Steps(Protocol):
    """A model with a cache: what the first call is given, and one call."""

    subject: Subject

    def start(self, inputs: Inputs) -> Any: ...
    def step(self, ids: Tensor, inputs: Inputs, cache: Any, begin: int) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class Departure:
    """The first module of the first step whose output differs from that in one call, while its input does not."""

    call: Call
    begin: int  # the first token of that step
    end: int
    is_first_step: bool


def departure(steps: Steps, inputs: Inputs, prefill: int, at_once: int) -> Departure | None:
    """Decode in pieces beside one call, module by module."""
    model, T = steps.subject.model, inputs.ids.shape[1]
    with recorded_modules(model) as whole:
        steps.subject.run(inputs)
    _, cache = steps.step(inputs.ids[:, :prefill], inputs, steps.start(inputs), 0)
    for begin in range(prefill, T, at_once):
        end = min(begin + at_once, T)
        with recorded_modules(model) as part:
            _, cache = steps.step(inputs.ids[:, begin:end], inputs, cache, begin)
        found = first_off(part, whole, T, begin, end)
        if found is not None:
            return Departure(found, begin, end, begin == prefill)
    return None


def first_off(part: list[Call], whole: list[Call], T: int, begin: int, end: int) -> Call | None:
    """The first module that makes something else of a part of a row than of the same tokens of the whole row.

    Args:
        part: calls of modules that were given tokens begin to end.
        whole: the calls for all T tokens.
    """
    for one, other in _paired(part, whole):
        if _off(one.outputs, other.outputs, T, begin, end) and not _off(one.inputs, other.inputs, T, begin, end):
            return one
    return None


def _paired(part: list[Call], whole: list[Call]) -> Iterator[tuple[Call, Call]]:
    """The calls of one module, the first with the first: a step may leave out what its cache holds."""
    calls: dict[str, list[Call]] = {}
    for call in whole:
        calls.setdefault(call.name, []).append(call)
    for one in part:
        if calls.get(one.name):
            yield one, calls[one.name].pop(0)


def _off(part: list[Tensor], whole: list[Tensor], T: int, begin: int, end: int) -> bool:
    """Whether the first tensor of a step differs from the same tokens of the whole."""
    if not part or not whole:
        return False
    one, other = part[0], whole[0]
    axes = [axis for axis, size in enumerate(other.shape) if size == T]
    if len(axes) != 1 or one.dim() != other.dim() or one.shape[axes[0]] != end - begin:
        return False
    other = other.narrow(axes[0], begin, end - begin)
    return one.shape == other.shape and float((one - other).abs().max()) > OFF * float(other.abs().max())


def causes_of(steps: Steps, inputs: Inputs, found: Departure, prefill: int, at_once: int) -> Causes:
    """What the attention in the guilty module sees, against what it should."""
    whole, part = _seen_in(steps, inputs, found, prefill, at_once)
    if whole is not None and part is not None:
        T_q, T_k = part.shape
        if T_k > T_q and torch.equal(part, torch.ones(T_q, T_k, dtype=torch.bool).tril()):
            return (("K04", 0.8), ("K02", 0.2))
    full, cached = _known(steps, found, prefill, at_once)
    missing = (full & ~cached).nonzero().flatten().tolist()
    if missing:
        oldest = int(full.nonzero()[0])
        return (
            (("K03", 0.8), ("K02", 0.2)) if missing == [oldest] and oldest < prefill else (("K02", 0.8), ("K01", 0.2))
        )
    if whole is not None and part is not None:
        wanted, got = int(whole[found.end - 1].sum()), int(part[-1].sum())
        if got < wanted:
            return (("K02", 0.8), ("K01", 0.2)) if found.is_first_step else (("K03", 0.7), ("K02", 0.3))
    return (("K01", 0.7), ("K02", 0.3))


def _seen_in(
    steps: Steps, inputs: Inputs, found: Departure, prefill: int, at_once: int
) -> tuple[Tensor | None, Tensor | None]:
    """Which keys the guilty module's attention may look at, in one call and in the step."""
    inside = {id(module) for module in found.call.module.modules()} if found.call.module is not None else set()
    with recorded_ops() as ops:
        steps.subject.run(inputs)
    whole = next((one.allowed for one in attentions(ops.calls) if id(one.call.module) in inside), None)
    _, cache = steps.step(inputs.ids[:, :prefill], inputs, steps.start(inputs), 0)
    for begin in range(prefill, found.begin, at_once):
        _, cache = steps.step(inputs.ids[:, begin : begin + at_once], inputs, cache, begin)
    with recorded_ops() as ops:
        steps.step(inputs.ids[:, found.begin : found.end], inputs, cache, found.begin)
    part = next((one.allowed for one in attentions(ops.calls) if id(one.call.module) in inside), None)
    return whole, part


def _known(steps: Steps, found: Departure, prefill: int, at_once: int) -> tuple[Tensor, Tensor]:
    """Which tokens move what the guilty module writes for the step's last token, in one call and step by step, (T,)."""
    subject = steps.subject
    _, changed, _ = swapped_rows(subject.inputs(), subject.pool(), subject.generator(1))
    with recorded_modules(subject.model) as whole:
        subject.run(changed)
    _, cache = steps.step(changed.ids[:, :prefill], changed, steps.start(changed), 0)
    for begin in range(prefill, found.begin, at_once):
        _, cache = steps.step(changed.ids[:, begin : begin + at_once], changed, cache, begin)
    with recorded_modules(subject.model) as part:
        steps.step(changed.ids[:, found.begin : found.end], changed, cache, found.begin)
    T = changed.ids.shape[1]
    return _alive(whole, found, T, found.end - 1), _alive(
        part, found, found.end - found.begin, found.end - found.begin - 1
    )


def _alive(calls: list[Call], found: Departure, n: int, place: int) -> Tensor:
    """(T,), by row: whether that row's changed token moves the output at a place."""
    call = next(call for call in calls if call.name == found.call.name)
    output = call.outputs[0]
    rows = output.shape[0]
    line = output.select(1, place).reshape(rows, -1) if output.shape[1] == n else output.reshape(rows, -1)
    moved = (line - line[-1:]).abs().amax(-1)
    return (moved > ALIVE * float(line.abs().max()))[:-1]
