"""What moves the weights, and what moves the rate."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from clearhead.doctor.probes.tensors import is_same
from clearhead.doctor.training.events import (
    Backward,
    Created,
    EventLog,
    Move,
    OptimizerStep,
    Scheduled,
    called,
    every,
    groups_of,
    parameters_held,
    rates_of,
)
from clearhead.doctor.training.gradient_log import norm, sample

ROOM = 4.0  # times the spacing of numbers near a weight: an update of this size cannot be lost in rounding


class Stepping:
    """Listens to optimizers and schedulers."""

    def __init__(self, event_log: EventLog) -> None:
        self.event_log = event_log
        self.open: list[object] = []  # optimizers whose step has not returned, a wrapper first
        self.step: OptimizerStep | None = None
        self.before: dict[nn.Parameter, Tensor] = {}  # samples of the weights
        self.backwards: dict[int, int] = {}  # optimizer -> how many there were at its last use
        self.schedulers: list[tuple[float, ...]] = []  # the rates before what has not returned, a wrapper's first

    def begin(self, optimizer: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An optimizer steps. Of a closure it is written down when it was called: the arguments returned do so."""
        self.open.append(optimizer)
        if len(self.open) == 1 and not self.event_log.is_full:
            self.event_log.in_step = True
            self.event_log.kept.append(optimizer)
            self.step = OptimizerStep(id(optimizer), type(optimizer).__name__, rates_of(optimizer), called("step"))
            self.before = {}
        if self.step is None:
            return None
        self._take(self.step, optimizer)
        if len(self.open) > 1:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._use(self.step)
            return None
        self.step.with_closure = True
        heard = self.event_log.heard(closure, after=self._use_by_closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": heard}
        return (args[0], heard, *args[2:]), kwargs

    def _take(self, step: OptimizerStep, optimizer: object) -> None:
        """What an optimizer holds, also one that another one wraps."""
        step.groups |= groups_of(optimizer)
        new = tuple(parameter for parameter in parameters_held(optimizer) if parameter not in self.before)
        step.parameters += new
        self.before |= {parameter: sample(parameter) for parameter in new}
        self.event_log.gradients.open(new)

    def _use_by_closure(self) -> None:
        if self.step is not None:
            self._use(self.step)
            self.event_log.gradients.settle(self.step.parameters)

    def _use(self, step: OptimizerStep) -> None:
        use = self.event_log.gradients.use(step.parameters)
        use.backwards = self.event_log.gradients.backwards - self.backwards.get(step.optimizer, 0)
        self.backwards[step.optimizer] = self.event_log.gradients.backwards
        step.uses.append(use)

    def end(self, optimizer: object, *_: object) -> None:
        """An optimizer stepped."""
        if optimizer not in self.open:
            return
        while self.open.pop() is not optimizer:  # one above it that raised
            pass
        if self.open or self.step is None:
            return
        step, self.step, self.event_log.in_step = self.step, None, False
        step.has_state = bool(getattr(optimizer, "state", None))
        groups = [group for group in getattr(optimizer, "param_groups", ()) if "lr" in group]
        rates = {parameter: float(group["lr"]) for group in groups for parameter in group["params"]}
        self._write(step, self.before, rates)

    def _write(self, step: OptimizerStep, before: Mapping[nn.Parameter, Tensor], rates: Mapping[Tensor, float]) -> None:
        for parameter in step.parameters:
            rate = rates.get(parameter, max(step.rates, default=0.0))
            step.moves[parameter] = _move(before[parameter], parameter, rate)
        self.event_log.gradients.settle(step.parameters)
        self.event_log.write(step)

    def look(self) -> None:
        """Notice weights that changed without an optimizer."""
        past = [event for event in self.event_log.timeline if isinstance(event, (Backward, OptimizerStep))]
        if self.open or not past or isinstance(past[-1], OptimizerStep):
            return
        touched = [account for account in self.event_log.gradients.accounts.values() if account.touched]
        moved = [account for account in touched if not is_same(sample(account.parameter), account.value)]
        if moved:
            held = tuple(account.parameter for account in moved)
            step = OptimizerStep(0, "a step by hand", (), replace(past[-1].where, op="step"), held)
            self._use(step)
            self._write(step, {account.parameter: account.value for account in moved}, {})

    def begin_schedule(self, scheduler: object, *_: object, **__: object) -> None:
        """A scheduler steps, or is created, which steps it once."""
        self.event_log.kept.append(scheduler)
        self.schedulers.append(rates_of(getattr(scheduler, "optimizer", None)))

    def end_schedule(self, method: str, scheduler: object, *_: object, **__: object) -> None:
        """It did."""
        before = self.schedulers.pop()
        if self.schedulers or method != "step":
            return
        optimizer = getattr(scheduler, "optimizer", None)
        fresh = not getattr(optimizer, "_opt_called", False)
        groups, after = groups_of(optimizer), rates_of(optimizer)
        self.event_log.kept.append(optimizer)
        name = type(scheduler).__name__
        is_first = not any(isinstance(e, Scheduled) and e.scheduler == id(scheduler) for e in self.event_log.timeline)
        batches = _longest_pass() if is_first else 0
        self.event_log.write(Scheduled(id(scheduler), name, groups, before, after, fresh, called("step"), batches))

    def create(self, optimizer: object, *_: object, **__: object) -> None:
        """There is a new optimizer."""
        self.event_log.kept.append(optimizer)
        held = frozenset(parameters_held(optimizer))
        self.event_log.write(Created(id(optimizer), type(optimizer).__name__, held, called("__init__")))


def _move(before: Tensor, parameter: nn.Parameter, rate: float) -> Move:
    after = sample(parameter)
    if after.shape != before.shape:
        return Move(rate, norm(before), math.inf, has_gradient=True, lost=0.0, can_move=True, learns=True)
    change, gradient = after.double() - before.double(), parameter.grad
    pushed = torch.zeros_like(before, dtype=torch.double)
    if gradient is not None and not gradient.is_sparse:
        pushed = sample(gradient).double().abs()
    has_gradient = pushed > 0
    lost = float((has_gradient & (change == 0)).sum()) / max(1, int(has_gradient.sum()))
    spacing = torch.finfo(before.dtype).eps * before.double().abs()
    can_move = bool((has_gradient & (rate * pushed > ROOM * spacing)).any())
    return Move(rate, norm(before), norm(change), bool(has_gradient.any()), lost, can_move, parameter.requires_grad)


def _longest_pass() -> int:
    """How many batches the longest DataLoader gives that knows it; 0 if there is none."""
    sizes = [0]
    for loader in every(DataLoader):
        with suppress(TypeError, NotImplementedError):  # a stream has no length
            sizes.append(len(loader))
    return max(sizes)
