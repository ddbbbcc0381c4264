"""What is written down of a training. Writing changes nothing in it, and no error of the writers stops it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from clearhead.doctor.problems import attempt
from clearhead.doctor.training.events import Event, OptimizerStep
from clearhead.doctor.training.gradient_log import GradientLog

MAX_STEPS = 8  # steps, after which nothing more is written down

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(eq=False)
class EventLog:
    """The timeline, the log of gradients, and the errors of the writers."""

    timeline: list[Event] = field(default_factory=list)
    gradients: GradientLog = field(default_factory=GradientLog)
    problems: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)  # what could not be tried on the model again, for the report
    paused: bool = False
    with_gradient: bool = True  # whether the loop computes gradients at this moment
    in_step: bool = False
    kept: list[object] = field(default_factory=list)  # optimizers and schedulers, so that no other object gets their id

    @property
    def steps(self) -> list[OptimizerStep]:
        """Those so far."""
        return [event for event in self.timeline if isinstance(event, OptimizerStep)]

    @property
    def is_full(self) -> bool:
        """Whether enough was written down."""
        return len(self.steps) >= MAX_STEPS

    def write(self, event: Event) -> None:
        """Append an event, unless enough was written down."""
        if not self.is_full:
            if isinstance(event, OptimizerStep):
                event.number = len(self.steps) + 1
            self.timeline.append(event)


class EventWriter(Protocol):
    """Listens to one kind of call."""

    event_log: EventLog


Self = TypeVar("Self", bound=EventWriter)


def quietly(
    method: Callable[Concatenate[Self, Arguments], Result],
) -> Callable[Concatenate[Self, Arguments], Result | None]:
    """An error in a writer goes into the report, and the training goes on."""

    @functools.wraps(method)
    def called(self: Self, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
        event_log = self.event_log
        if event_log.paused or torch.compiler.is_compiling():
            return None
        event_log.with_gradient = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        with attempt() as attempted, torch.no_grad():
            return method(self, *args, **kwargs)
        event_log.problems.append(f"{method.__name__}: {attempted.sentence(120)}")
        return None

    return called
