"""A watched training, as the checks ask about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.report.findings import Where
from clearhead.doctor.training.events import (
    Backward,
    Event,
    EventLog,
    Forward,
    OptimizerStep,
    every,
    groups_of,
    parameters_held,
)
from clearhead.doctor.training.gradient_log import GradientAccount
from clearhead.doctor.training.logits import LogitsXray
from clearhead.wording import listed

Kind = TypeVar("Kind", bound=Event)


@dataclass(eq=False)
class Recording:
    """The events of a training, and the objects that took part in it."""

    event_log: EventLog
    model: nn.Module | None  # the one that is trained; if None, it is found by its forwards and its parameters
    optimizers: Sequence[object] = ()  # those that the caller named; others are found among all objects
    schedulers: Sequence[object] = ()

    @property
    def timeline(self) -> list[Event]:
        """All events in order."""
        return self.event_log.timeline

    def around(self, event: Event) -> tuple[list[Event], list[Event]]:
        """Those before an event and those after it, both beginning beside it."""
        index = self.timeline.index(event)
        return self.timeline[:index][::-1], self.timeline[index + 1 :]

    def events(self, kind: type[Kind]) -> list[Kind]:
        """Those of one kind, in order."""
        return [event for event in self.timeline if isinstance(event, kind)]

    @cached_property
    def steps(self) -> list[OptimizerStep]:
        """Updates of the weights."""
        return self.events(OptimizerStep)

    @cached_property
    def stepped(self) -> set[nn.Parameter]:
        """What optimizers that step hold."""
        return {parameter for step in self.steps for parameter in step.parameters}

    @cached_property
    def spans(self) -> list[tuple[list[Event], OptimizerStep]]:
        """Each step, with the events since the step before it."""
        ends = [-1, *(number for number, event in enumerate(self.timeline) if isinstance(event, OptimizerStep))]
        spans = [self.timeline[start + 1 : end] for start, end in pairwise(ends)]
        return list(zip(spans, self.steps, strict=True))

    @cached_property
    def by_optimizer(self) -> dict[int, list[OptimizerStep]]:
        """The steps of each optimizer, by its id."""
        steps: dict[int, list[OptimizerStep]] = {}
        for step in self.steps:
            steps.setdefault(step.optimizer, []).append(step)
        return steps

    @cached_property
    def backwards(self) -> list[Backward]:
        """Gradients that were computed."""
        return self.events(Backward)

    @cached_property
    def learned(self) -> list[Forward]:
        """Forwards of what is trained that a backward followed."""
        held = set(self.parameters)
        followed = [forward for backward in self.backwards for forward in backward.forwards]
        return [forward for forward in followed if not held.isdisjoint(forward.module.parameters())]

    @cached_property
    def xrays(self) -> list[LogitsXray]:
        """What the losses ask for, for each forward in `learned` that returned logits."""
        return [xray for backward in self.backwards for xray in backward.xrays if xray.forward in self.learned]

    @cached_property
    def roots(self) -> list[nn.Module]:
        """What is trained: outermost modules that hold what a step moves; else all that got a gradient."""
        if self.model is not None:
            return [self.model]
        ran = list(dict.fromkeys(forward.module for backward in self.backwards for forward in backward.forwards))
        roots = [module for module in ran if not self.stepped.isdisjoint(module.parameters())]
        roots = roots or [m for m in ran if any(parameter.requires_grad for parameter in m.parameters())]
        inner = {part for root in roots for part in root.modules() if part is not root}
        return [root for root in roots if root not in inner]

    @cached_property
    def names(self) -> dict[Tensor, str]:
        """The path of each parameter."""
        names: dict[Tensor, str] = {}
        for root in self.roots:
            prefix = f"{type(root).__name__}." if len(self.roots) > 1 else ""
            for name, parameter in root.named_parameters():
                names.setdefault(parameter, prefix + name)
        return names

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Of what is trained."""
        return [parameter for root in self.roots for parameter in root.parameters()]

    @cached_property
    def alive(self) -> list[object]:
        """Every optimizer that exists. This searches all objects: only for when something seems to be missing."""
        return [*self.optimizers, *(held for held in every(Optimizer) if hasattr(held, "param_groups"))]

    def schedules(self, groups: frozenset[int]) -> list[object]:
        """The schedulers that set the rates of these groups; it searches all objects, too."""
        schedulers = [*self.schedulers, *self.event_log.kept, *every(LRScheduler)]
        return [scheduler for scheduler in schedulers if groups & groups_of(getattr(scheduler, "optimizer", None))]

    def is_held(self, parameter: nn.Parameter) -> bool:
        """Whether some optimizer holds a parameter, whether it steps or not."""
        return parameter in self.stepped or parameter in self._held

    @cached_property
    def _held(self) -> set[nn.Parameter]:
        return {parameter for optimizer in self.alive for parameter in parameters_held(optimizer)}

    @property
    def accounts(self) -> list[GradientAccount]:
        """What is known of each parameter's gradient."""
        return list(self.event_log.gradients.accounts.values())

    def account(self, parameter: nn.Parameter) -> GradientAccount:
        """What is known of its gradient: nothing, if it never took part."""
        return self.event_log.gradients.accounts.get(parameter) or GradientAccount(parameter)

    def was_reached(self, parameter: nn.Parameter) -> bool:
        """Whether it ever had a gradient other than zero."""
        return self.account(parameter).reached

    def name(self, parameter: Tensor) -> str:
        """Its path, or its shape if it is not part of what is trained."""
        return self.names.get(parameter, f"a tensor of {tuple(parameter.shape)} outside the model")

    def listed(self, parameters: Iterable[Tensor]) -> str:
        """Some of their names."""
        return listed([self.name(parameter) for parameter in parameters])

    def where(self, parameter: Tensor) -> Where:
        """The module that owns a parameter."""
        for path, module in (named for root in self.roots for named in root.named_modules()):
            if any(own is parameter for own in module.parameters(recurse=False)):
                return place_of_module(path, module)
        return Where()
