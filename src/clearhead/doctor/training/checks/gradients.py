"""Whether gradients exist, are finite, and are used once each."""

import math

from clearhead.doctor.checks.base import finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import Backward, OptimizerStep
from clearhead.doctor.training.gradient_log import Use
from clearhead.doctor.training.recording import Recording


@training_check("I06", "graph", order=10, covers=("I06",), holds="each backward reaches parameters")
def graph(recording: Recording) -> list[Finding]:
    """Every backward reaches some parameter."""
    vanished = any(a.present for a in recording.accounts) and not any(a.reached for a in recording.accounts)
    for backward in recording.backwards:
        trainable = any(p.requires_grad for forward in backward.forwards for p in forward.module.parameters())
        if not backward.has_graph:
            witness = f"backward was called on a loss of {backward.loss:.4g} that has no graph"
            return [finding("I06", witness, value=0, where=backward.where)]
        if backward.reached == 0 and trainable and not vanished:
            witness = f"after the backward of a loss of {backward.loss:.4g} no parameter's gradient has changed"
            return [finding("I06", witness, value=0, where=backward.where)]
    return []


@training_check(
    "R02", "numbers", order=20, covers=("R01", "R02"), holds="losses and gradients are finite", needs=("graph",)
)
def numbers(recording: Recording) -> list[Finding]:
    """Losses and the gradients that steps use are finite. Only the first that is not is reported: the rest follows."""
    for event in recording.timeline:
        if isinstance(event, Backward) and (math.isnan(event.loss) or (math.isinf(event.loss) and event.scale == 1)):
            return [finding("R01", f"the loss is {event.loss}", where=event.where)]
        for use in event.uses if isinstance(event, OptimizerStep) else ():
            if use.not_finite:
                names = recording.listed(use.not_finite)
                witness = f"a step uses a gradient of {names} that is not finite, although the loss is"
                return [finding("R02", witness, where=recording.where(use.not_finite[0]))]
    return []


@training_check(
    "T01",
    "cleared",
    order=30,
    covers=("T01", "T02", "T11"),
    holds="a step uses what the backwards since the last step computed, all of it, once",
    needs=("graph",),
)
def cleared(recording: Recording) -> list[Finding]:
    """A step uses what the backwards since the last one computed, all of it, once."""
    for step in recording.steps:
        for number, use in enumerate(step.uses):
            findings = _misused(recording, step, use)
            is_empty = step.optimizer and not use.with_gradient
            if not findings and is_empty and (use.wiped or (use.backwards == 0 and number == 0)):
                findings = [_empty(recording, step)]
            if findings:
                return findings
    return []


def _misused(recording: Recording, step: OptimizerStep, use: Use) -> list[Finding]:
    """Gradients that an earlier step had used."""
    if use.mixed:
        mixture = max((mixture for use in step.uses for mixture in use.mixed), key=lambda mixture: mixture.old)
        witness = (
            f"the gradient of {recording.name(mixture.parameter)} that a step had used, of norm {mixture.old:.3g}, was "
            f"still there when the next backward added its own of {mixture.own:.3g}; step {step.number} uses the sum, "
            f"of {mixture.total:.3g}"
        )
        return [finding("T01", witness, value=mixture.total, threshold=mixture.own, where=step.where)]
    if use.again:
        names = recording.listed(use.again)
        by = " a second time" if len(recording.by_optimizer[step.optimizer]) > 1 else ", as another optimizer did"
        witness = f"step {step.number} uses the gradient of {names}{by}, with no backward in between"
        return [finding("T11", witness, where=step.where)]
    return []


def _empty(recording: Recording, step: OptimizerStep) -> Finding:
    wiped = step.uses[0].wiped
    if wiped:
        names = recording.listed(wiped)
        witness = f"a backward filled the gradients of {names}, and all were empty at step {step.number}"
    else:
        past = recording.timeline[: recording.timeline.index(step)]
        before = "since the step before" if any(isinstance(event, Backward) for event in past) else "yet"
        witness = f"step {step.number} has no gradient: no backward was called {before}"
    return finding("T02", witness, value=0, where=step.where)
