"""What moves the weights, and what moves the rate."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.probes.tensors import is_same
from clearhead.doctor.training.event_log import EventLog, quietly
from clearhead.doctor.training.events import (
    Backward,
    Created,
    Move,
    OptimizerStep,
    Scheduled,
    called,
    groups_of,
    parameters_held,
    rates_of,
)
from clearhead.doctor.training.readings import norm, sample

ROOM = 4.0  # times the spacing of numbers near a weight: an update of this size cannot be lost in rounding


class Stepping:
    """Listens to optimizers and schedulers."""

    def __init__(self, event_log: EventLog) -> None:
        self.event_log = event_log
        self.open: list[object] = []  # optimizers whose step has not returned, a wrapper first
        self.step: OptimizerStep | None = None
        self.before: dict[int, Tensor] = {}  # samples of the weights
        self.backwards: dict[int, int] = {}  # optimizer -> how many there were at its last use
        self.schedulers: list[object] = []  # inside `step` or their creation, a wrapper first

    @quietly
    def begin(self, optimizer: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An optimizer steps. Of a closure it is written down when it was called: the arguments returned do so."""
        self.open.append(optimizer)
        held = parameters_held(optimizer)
        if len(self.open) > 1 or self.event_log.is_full:
            if self.step is not None:
                self._add_inner(optimizer, held)
            return None
        self.event_log.in_step = True
        self.event_log.kept.append(optimizer)
        self.step = OptimizerStep(id(optimizer), type(optimizer).__name__, rates_of(optimizer), called("step"), held)
        self.step.groups = groups_of(optimizer)
        self.event_log.gradients.open(held)
        self.before = {id(parameter): sample(parameter) for parameter in held}
        if callable(kwargs.get("closure")):
            self.step.with_closure = True
            return args, {**kwargs, "closure": self._telling(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            self.step.with_closure = True
            return (args[0], self._telling(args[1]), *args[2:]), kwargs
        self._use(self.step)
        return None

    def _add_inner(self, optimizer: object, held: tuple[nn.Parameter, ...]) -> None:
        """What an optimizer holds that another one wraps."""
        assert self.step is not None
        self.step.groups |= groups_of(optimizer)
        known = {id(parameter) for parameter in self.step.parameters}
        new = tuple(parameter for parameter in held if id(parameter) not in known)
        self.event_log.gradients.open(new)
        self.step.parameters += new
        self.before |= {id(parameter): sample(parameter) for parameter in new}

    def _telling(self, closure: Callable[[], object]) -> Callable[[], object]:
        @functools.wraps(closure)
        def wrapped() -> object:
            result = closure()
            self._use_by_closure()
            return result

        return wrapped

    @quietly
    def _use_by_closure(self) -> None:
        if self.step is not None:
            self._use(self.step)
            self.event_log.gradients.settle(self.step.parameters)

    def _use(self, step: OptimizerStep) -> None:
        use = self.event_log.gradients.use(step.parameters)
        use.backwards = self.event_log.gradients.backwards - self.backwards.get(step.optimizer, 0)
        self.backwards[step.optimizer] = self.event_log.gradients.backwards
        step.uses.append(use)

    @quietly
    def end(self, optimizer: object, *_: object) -> None:
        """An optimizer stepped."""
        if optimizer not in self.open:
            return
        while self.open.pop() is not optimizer:  # one above it that raised
            pass
        if self.open or self.step is None:
            return
        step, self.step, self.event_log.in_step = self.step, None, False
        rates = _rates(optimizer)
        for parameter in step.parameters:
            rate = rates.get(id(parameter), max(step.rates, default=0.0))
            step.moves[id(parameter)] = _move(self.before[id(parameter)], parameter, rate)
        step.has_state = bool(getattr(optimizer, "state", None))
        self.before = {}
        self.event_log.gradients.settle(step.parameters)
        self.event_log.write(step)

    @quietly
    def look(self) -> None:
        """Notice weights that changed without an optimizer."""
        past = [event for event in self.event_log.timeline if isinstance(event, (Backward, OptimizerStep))]
        if self.open or not past or isinstance(past[-1], OptimizerStep):
            return
        touched = [account for account in self.event_log.gradients.accounts.values() if account.touched]
        moved = [account for account in touched if not is_same(sample(account.parameter), account.value)]
        if not moved:
            return
        held = tuple(account.parameter for account in moved)
        step = OptimizerStep(0, "a step by hand", (), replace(past[-1].where, op="step"), held)
        self._use(step)
        step.moves = {id(account.parameter): _move(account.value, account.parameter, 0.0) for account in moved}
        self.event_log.gradients.settle(held)
        self.event_log.write(step)

    def schedule(self, old: Callable[..., object], scheduler: object, *args: object, **kwargs: object) -> object:
        """A scheduler steps, or is created, which steps it once."""
        before = rates_of(getattr(scheduler, "optimizer", None))
        self.event_log.kept.append(scheduler)
        self.schedulers.append(scheduler)
        try:
            result = old(scheduler, *args, **kwargs)
        finally:
            self.schedulers.pop()
        if not self.schedulers and old.__name__ == "step":
            self._note_schedule(scheduler, before)
        return result

    @quietly
    def _note_schedule(self, scheduler: object, before: tuple[float, ...]) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        fresh = not getattr(optimizer, "_opt_called", False)
        groups, after = groups_of(optimizer), rates_of(optimizer)
        self.event_log.kept.append(optimizer)
        name = type(scheduler).__name__
        self.event_log.write(Scheduled(id(scheduler), name, groups, before, after, fresh, called("step")))

    def create(self, old: Callable[..., object], optimizer: object, *args: object, **kwargs: object) -> None:
        """A new optimizer."""
        old(optimizer, *args, **kwargs)
        self._note_creation(optimizer)

    @quietly
    def _note_creation(self, optimizer: object) -> None:
        self.event_log.kept.append(optimizer)
        held = frozenset(id(parameter) for parameter in parameters_held(optimizer))
        self.event_log.write(Created(id(optimizer), type(optimizer).__name__, held, called("__init__")))


def _rates(optimizer: object) -> dict[int, float]:
    groups = getattr(optimizer, "param_groups", ())
    return {id(parameter): float(group["lr"]) for group in groups if "lr" in group for parameter in group["params"]}


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
