"""What is written down of a training. Writing changes nothing in it, and no error of the writers stops it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from clearhead.doctor.problems import attempt
from clearhead.doctor.training.events import Event, OptimizerStep
from clearhead.doctor.training.gradient_log import GradientLog

MAX_STEPS = 8  # steps, after which nothing more is written down

Function = Callable[..., Any]


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

    def quiet(self, listener: Function) -> Function:
        """A listener whose errors go into the report, while the training goes on."""

        def called(*args: object, **kwargs: object) -> Any:
            if self.paused or torch.compiler.is_compiling():
                return None
            self.with_gradient = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            with attempt() as attempted, torch.no_grad():
                return listener(*args, **kwargs)
            self.problems.append(f"{getattr(listener, 'func', listener).__name__}: {attempted.sentence(120)}")
            return None

        return called

    def heard(self, old: Function, before: Function | None = None, after: Function | None = None) -> Function:
        """`old` between two listeners, which get its arguments; what `before` returns takes the place of these."""
        begin, end = (None if listener is None else self.quiet(listener) for listener in (before, after))

        @functools.wraps(old)
        def called(*args: object, **kwargs: object) -> Any:
            replaced = begin(*args, **kwargs) if begin else None
            try:
                args, kwargs = replaced or (args, kwargs)
                return old(*args, **kwargs)
            finally:
                if end:
                    end(*args, **kwargs)

        return called
