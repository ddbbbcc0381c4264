"""`with watch(model, optimizer) as w:` two steps of any training loop, and `w.report()`."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from torch import nn
from torch.optim import Optimizer

from clearhead.doctor.catalogue.faults import refuse_unknown
from clearhead.doctor.checks.base import answer, joined
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.report import Report
from clearhead.doctor.report.verdict import Checked
from clearhead.doctor.spec import Assumption
from clearhead.doctor.training.checks import TRAINING_CHECKS
from clearhead.doctor.training.event_log import EventLog
from clearhead.doctor.training.events import parameters_held
from clearhead.doctor.training.forwards import Forwards
from clearhead.doctor.training.gradients import Gradients
from clearhead.doctor.training.patches import install, listen_to
from clearhead.doctor.training.recording import Recording
from clearhead.doctor.training.stepping import Stepping


def watch(
    model: nn.Module | None = None,
    optimizer: object = None,
    scheduler: object = None,
    *,
    allow: Mapping[str, str] | None = None,
) -> "Watch":
    """Look at some steps of a training loop, which stays as it is; `report()` then tells what is wrong with it.

    Calls of torch are listened to while the context is open, and put back afterwards, whatever happens. The loop's
    numbers are those that it would have without. The first eight steps are looked at; two are enough.

    Args:
        model: what is trained; found by what runs and what the optimizers hold, if it is not given.
        optimizer: one or several; those of torch are found. Weights that are moved by hand are seen too.
        scheduler: one or several; those of torch are found.
        allow: id of a check -> why its finding is no fault here.

    Raises:
        UsageError: an unknown id in `allow`.
    """
    refuse_unknown(None, "quick", allow or {})
    return Watch(model, _several(optimizer), _several(scheduler), allow or {})


def _several(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


class Watch:
    """A training that is being watched; made by `watch`."""

    def __init__(
        self,
        model: nn.Module | None,
        optimizers: list[object],
        schedulers: list[object],
        allow: Mapping[str, str],
        before: Callable[["Watch", bool], None] | None = None,
    ) -> None:
        """`before` is called before every outermost forward; it is told whether that computes gradients."""
        self.model, self.optimizers, self.schedulers, self.allow = model, optimizers, schedulers, allow
        self.event_log = EventLog()
        self.stepping = Stepping(self.event_log)
        self.forwards = Forwards(self.event_log, self._before_forward)
        self.gradients = Gradients(self.event_log, self.forwards)
        self.before = before
        self.stack = ExitStack()

    def _before_forward(self, with_gradient: bool) -> None:
        if with_gradient:
            self.stepping.look()
        if self.before is not None:
            self.before(self, with_gradient)

    def __enter__(self) -> Self:
        if self.model is not None:
            self.event_log.gradients.open(self.model.parameters())
        for optimizer in self.optimizers:
            self.event_log.gradients.open(parameters_held(optimizer))
        with ExitStack() as stack:
            install(stack, self.forwards, self.gradients, self.stepping)
            for optimizer in self.optimizers:
                if not isinstance(optimizer, Optimizer) and callable(getattr(optimizer, "step", None)):
                    with suppress(AttributeError):  # one that cannot be listened to is seen by what it moves
                        listen_to(stack, optimizer, self.stepping)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stepping.look()
        self.stack.close()

    def report(self, name: str | None = None) -> Report:
        """What was found, as `doctor.check` tells it.

        Args:
            name: of the target in the report; the model's class by default.
        """
        self.stepping.look()
        paused, self.event_log.paused = self.event_log.paused, True
        begun = time.perf_counter()
        try:
            recording = Recording(self.event_log, self.model, self.optimizers, self.schedulers)
            findings, checks = _examine(recording, self.allow)
            roots = [type(root).__name__ for root in recording.roots]
            return Report(
                target=name or " and ".join(roots) or "a training",
                kind="training",
                findings=tuple(sorted(findings, key=lambda fault: fault.status != "fail")),
                checks=tuple(checks),
                assumptions=tuple(_assumptions(recording)),
                paths=tuple(_paths(recording)),
                seconds=time.perf_counter() - begun,
            )
        finally:
            self.event_log.paused = paused


def _examine(recording: Recording, allow: Mapping[str, str]) -> tuple[list[Finding], list[Checked]]:
    findings: list[Finding] = []
    checked: list[Checked] = []
    failed: set[str] = set()
    for check in TRAINING_CHECKS:
        begun = time.perf_counter()
        status, note, match = answer(check, recording, failed, allow)
        if any(fault.status == "fail" for fault in match):
            failed.add(check.name)
        findings = joined(findings, match, check.name, allow)
        checked.append(check.checked(status, note, begun))
    if not recording.steps:  # what could go wrong was not seen
        checked = [
            replace(fault, status="skip", note="no step was made") if fault.status == "pass" else fault
            for fault in checked
        ]
    return findings, checked


def _assumptions(recording: Recording) -> Iterable[Assumption]:
    if recording.xrays and recording.xrays[0].is_precise:
        question = recording.xrays[0]
        where = {1: "the next token", 0: "the token that is read there"}.get(question.offset or 0, "another token")
        distance = "no place among the tokens" if question.offset is None else where
        yield Assumption("its loss", f"asks for {distance}", (question.xray.sentence.partition(", ")[2],))


def _paths(recording: Recording) -> Iterable[str]:
    for optimizer in dict.fromkeys(step.optimizer for step in recording.steps):
        steps = recording.steps_of(optimizer)
        rates = ", ".join(f"{max(step.rates):.3g}" for step in steps if step.rates)
        at_rates = f" at {rates}" if rates else ""
        yield f"{len(steps)} step{'s' * (len(steps) != 1)} of {steps[0].name}{at_rates}"
    modes = {forward.training for forward in recording.learned}
    mode = " and ".join(name for held, name in ((True, "train()"), (False, "eval()")) if held in modes)
    yield f"{len(recording.backwards)} backwards, {len(recording.learned)} forwards in {mode or 'no mode'}"
    yield from dict.fromkeys(recording.event_log.untried)
    if recording.event_log.problems:
        yield f"not written down: {recording.event_log.problems[0]}"
