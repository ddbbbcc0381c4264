"""A watched training, as the checks ask about it."""

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.report.findings import Where
from clearhead.doctor.training.event_log import EventLog
from clearhead.doctor.training.events import (
    Backward,
    Clip,
    Event,
    Forward,
    Location,
    OptimizerStep,
    Scheduled,
    groups_of,
    parameters_held,
)
from clearhead.doctor.training.gradient_log import GradientAccount
from clearhead.doctor.training.logits import LogitsXray

NAMED = 3  # parameters that a sentence names


@dataclass(eq=False)
class Recording:
    """The event_log of a training, and the objects that took part in it.

    Args:
        model: the one that is trained; found by its forwards and its parameters where it is None.
        optimizers, schedulers: those that were named; the ones alive are found.
    """

    event_log: EventLog
    model: nn.Module | None
    optimizers: Sequence[object] = ()
    schedulers: Sequence[object] = ()

    @property
    def timeline(self) -> list[Event]:
        """Everything that happened."""
        return self.event_log.timeline

    @cached_property
    def steps(self) -> list[OptimizerStep]:
        """Updates of the weights."""
        return self.event_log.steps

    @cached_property
    def backwards(self) -> list[Backward]:
        """Gradients that were computed."""
        return [event for event in self.timeline if isinstance(event, Backward)]

    @cached_property
    def forwards(self) -> list[Forward]:
        """Outermost calls of modules."""
        return [event for event in self.timeline if isinstance(event, Forward)]

    @cached_property
    def clips(self) -> list[Clip]:
        """Bounds on gradients."""
        return [event for event in self.timeline if isinstance(event, Clip)]

    @cached_property
    def scheduled(self) -> list[Scheduled]:
        """Steps of schedulers."""
        return [event for event in self.timeline if isinstance(event, Scheduled)]

    @cached_property
    def learned(self) -> list[Forward]:
        """Forwards of what is trained that a backward followed."""
        held = {id(parameter) for parameter in self.parameters}
        followed = [forward for backward in self.backwards for forward in backward.forwards]
        return [f for f in followed if any(id(parameter) in held for parameter in f.module.parameters())]

    @cached_property
    def xrays(self) -> list[LogitsXray]:
        """What the losses asked of the logits of what is trained."""
        learned = {id(forward) for forward in self.learned}
        return [
            question for backward in self.backwards for question in backward.xrays if id(question.forward) in learned
        ]

    @cached_property
    def roots(self) -> list[nn.Module]:
        """What is trained: outermost modules that hold what a step moves; else all that a gradient was computed for."""
        if self.model is not None:
            return [self.model]
        ran: list[nn.Module] = []
        for forward in (forward for backward in self.backwards for forward in backward.forwards):
            if not any(forward.module is known for known in ran):
                ran.append(forward.module)
        moved = {id(parameter) for step in self.steps for parameter in step.parameters}
        roots = [module for module in ran if any(id(parameter) in moved for parameter in module.parameters())]
        roots = roots or [m for m in ran if any(parameter.requires_grad for parameter in m.parameters())]
        return [m for m in roots if not any(m is not other and _is_inside(m, other) for other in roots)]

    @cached_property
    def names(self) -> dict[int, str]:
        """Parameter -> its path."""
        names_by_id: dict[int, str] = {}
        for root in self.roots:
            prefix = f"{type(root).__name__}." if len(self.roots) > 1 else ""
            for name, parameter in root.named_parameters():
                names_by_id.setdefault(id(parameter), prefix + name)
        return names_by_id

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Of what is trained."""
        return [parameter for root in self.roots for parameter in root.parameters()]

    @cached_property
    def stepping(self) -> list[object]:
        """Optimizers that stepped."""
        stepped = {step.optimizer for step in self.steps}
        return list(
            {
                id(optimizer): optimizer
                for optimizer in [*self.optimizers, *self.event_log.heard]
                if id(optimizer) in stepped
            }.values()
        )

    @cached_property
    def alive(self) -> list[object]:
        """Every optimizer that there is: a search among all objects, for when something seems to be missing."""
        return [*self.optimizers, *(held for held in _every(Optimizer) if hasattr(held, "param_groups"))]

    def schedules(self, groups: frozenset[int]) -> list[object]:
        """The schedulers that set the rates of these groups; a search, too."""
        schedulers = [*self.schedulers, *self.event_log.heard, *_every(LRScheduler)]
        return [scheduler for scheduler in schedulers if groups & groups_of(getattr(scheduler, "optimizer", None))]

    def is_held(self, parameter: Tensor) -> bool:
        """Whether some optimizer holds a parameter, whether it steps or not."""
        if any(parameter is own for step in self.steps for own in step.parameters):
            return True
        return id(parameter) in self._held

    @cached_property
    def _held(self) -> set[int]:
        return {id(parameter) for optimizer in self.alive for parameter in parameters_held(optimizer)}

    def account(self, parameter: Tensor) -> GradientAccount | None:
        """What is known of its gradient; None for one that nothing has met."""
        return self.event_log.gradients.accounts.get(id(parameter))

    def steps_of(self, optimizer: int) -> list[OptimizerStep]:
        """The updates by one optimizer."""
        return [step for step in self.steps if step.optimizer == optimizer]

    def name(self, parameter: Tensor) -> str:
        """Its path, or its shape where it is no part of what is trained."""
        return self.names.get(id(parameter), f"a tensor of {tuple(parameter.shape)} outside the model")

    def listed(self, parameters: Iterable[Tensor]) -> str:
        """Some of their names."""
        names = [self.name(parameter) for parameter in parameters]
        return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")

    def where(self, parameter: Tensor) -> Where:
        """The module that owns a parameter."""
        for root in self.roots:
            for path, module in root.named_modules():
                if any(own is parameter for own in module.parameters(recurse=False)):
                    return place_of_module(path, module)
        return Where()

    def number(self, step: OptimizerStep) -> int:
        """Counted from 1."""
        return next(n for n, known in enumerate(self.steps, 1) if known is step)


def at(location: Location, op: str | None = None) -> Where:
    """A line of the training loop."""
    return Where(file=location[0], line=location[1], op=op)


def _every(kind: Any) -> list[Any]:
    """All objects of a class and those below it."""
    kinds = {kind}
    while below := {child for known in kinds for child in known.__subclasses__()} - kinds:
        kinds |= below
    return [held for held in gc.get_objects() if type(held) in kinds]


def _is_inside(module: nn.Module, other: nn.Module) -> bool:
    return any(part is module for part in other.modules())
