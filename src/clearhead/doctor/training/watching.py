"""`with watch(model, optimizer) as w:` two steps of any training loop, and `w.report()`."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
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
from clearhead.doctor.training.events import EventLog, parameters_held
from clearhead.doctor.training.passes import Passes
from clearhead.doctor.training.patches import install, listen_to
from clearhead.doctor.training.recording import Recording
from clearhead.doctor.training.stepping import Stepping
from clearhead.wording import counted


class watch:  # noqa: N801 - used as a context manager
    """Watch some steps of a training loop without changing it; `report()` then says what is wrong with it.

    While the context is open, calls of torch are recorded; afterwards torch is as it was before, whatever happens. The
    loop's numbers are the same as without. Two steps are enough, and no more than eight are recorded.

    Args:
        model: what is trained; if it is None, it is found by what runs and what the optimizers hold.
        optimizer: one or several; torch's own are found. Weights that are moved by hand are noticed, too.
        scheduler: one or several; torch's own are found.
        allow: id of a check -> why its finding is not a fault here.
        before: called before every outermost forward, with whether it computes gradients.

    Raises:
        UsageError: an unknown id in `allow`.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: object = None,
        scheduler: object = None,
        *,
        allow: Mapping[str, str] | None = None,
        before: Callable[["watch", bool], None] | None = None,
    ) -> None:
        self.model, self.allow = model, allow or {}
        refuse_unknown(None, "quick", self.allow)
        self.optimizers, self.schedulers = _several(optimizer), _several(scheduler)
        self.event_log = EventLog()
        self.stepping = Stepping(self.event_log)
        self.look = self.event_log.quiet(self.stepping.look)
        self.passes = Passes(self.event_log, self._before_forward)
        self.before = before
        self.stack = ExitStack()

    def _before_forward(self, with_gradient: bool) -> None:
        if with_gradient:
            self.look()
        if self.before is not None:
            self.before(self, with_gradient)

    def __enter__(self) -> Self:
        if self.model is not None:
            self.event_log.gradients.open(self.model.parameters())
        with ExitStack() as stack:
            install(stack, self.event_log, self.passes, self.stepping)
            for optimizer in self.optimizers:
                self.event_log.gradients.open(parameters_held(optimizer))
                if not isinstance(optimizer, Optimizer) and callable(getattr(optimizer, "step", None)):
                    with suppress(AttributeError):  # if its step cannot be replaced, its moves are still noticed
                        listen_to(stack, self.event_log, optimizer, self.stepping)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.look()
        self.stack.close()

    def report(self, name: str | None = None) -> Report:
        """The findings so far, as a report like that of `doctor.check`.

        Args:
            name: of the target in the report; the model's class by default.
        """
        self.look()
        begun = time.perf_counter()
        with self.event_log.pause():
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


def _several(value: object) -> list[object]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _examine(recording: Recording, allow: Mapping[str, str]) -> tuple[list[Finding], list[Checked]]:
    findings: list[Finding] = []
    checked: list[Checked] = []
    failed: set[str] = set()
    for check in TRAINING_CHECKS:
        begun = time.perf_counter()
        status, note, new = answer(check, recording, failed, allow)
        if any(fault.status == "fail" for fault in new):
            failed.add(check.name)
        if status == "pass" and not recording.steps:  # nothing happened that could have gone wrong
            status, note = "skip", "no step was made"
        findings = joined(findings, new, check.name, allow)
        checked.append(check.checked(status, note, begun))
    return findings, checked


def _assumptions(recording: Recording) -> Iterable[Assumption]:
    if recording.xrays and recording.xrays[0].is_precise:
        xray = recording.xrays[0]
        targets = {None: "tokens at no common distance", 1: "the next token", 0: "the token at the same position"}
        reason = xray.xray.sentence.partition(", ")[2]
        yield Assumption("its loss", f"asks for {targets.get(xray.offset, 'another token')}", (reason,))


def _paths(recording: Recording) -> Iterable[str]:
    for steps in recording.by_optimizer.values():
        rates = ", ".join(f"{max(step.rates):.3g}" for step in steps if step.rates)
        at_rates = f" at {rates}" if rates else ""
        yield f"{counted(len(steps), 'step')} of {steps[0].name}{at_rates}"
    modes = {forward.training for forward in recording.learned}
    mode = " and ".join(name for held, name in ((True, "train()"), (False, "eval()")) if held in modes)
    yield f"{len(recording.backwards)} backwards, {len(recording.learned)} forwards in {mode or 'no mode'}"
    yield from dict.fromkeys(recording.event_log.untried)
    if recording.event_log.problems:
        yield f"not written down: {recording.event_log.problems[0]}"
