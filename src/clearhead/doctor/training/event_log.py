"""What is written down of a training. Writing changes nothing in it, and a mishap of the writer stops nothing."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from clearhead.doctor.problems import attempt
from clearhead.doctor.training.events import Event, OptimizerStep
from clearhead.doctor.training.gradient_log import GradientLog

ENOUGH = 8  # steps, after which nothing more is written down

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(eq=False)
class EventLog:
    """The timeline, the log of gradients, and the mishaps of the writers."""

    timeline: list[Event] = field(default_factory=list)
    gradients: GradientLog = field(default_factory=GradientLog)
    problems: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)  # what could not be asked of the model again, for the report
    begun: float = field(default_factory=time.perf_counter)
    paused: bool = False
    with_gradient: bool = True  # whether the loop computes gradients at this moment
    in_step: bool = False
    heard: list[object] = field(default_factory=list)  # optimizers and schedulers; kept, so that no other gets their id

    @property
    def steps(self) -> list[OptimizerStep]:
        """Those that were made so far."""
        return [event for event in self.timeline if isinstance(event, OptimizerStep)]

    def write(self, event: Event) -> None:
        """One more, while there is room."""
        if not self.is_full:
            self.timeline.append(event)

    @property
    def is_full(self) -> bool:
        """Whether enough was seen."""
        return len(self.steps) >= ENOUGH


class EventWriter(Protocol):
    """Listens to one kind of call."""

    event_log: EventLog


Self = TypeVar("Self", bound=EventWriter)


def quietly(
    method: Callable[Concatenate[Self, Arguments], Result],
) -> Callable[Concatenate[Self, Arguments], Result | None]:
    """What cannot be written down is told in the report, and the training goes on."""

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
