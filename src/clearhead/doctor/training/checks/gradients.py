"""Whether gradients exist, are numbers, and are each used once."""

import math

from clearhead.doctor.checks.base import finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import Backward, OptimizerStep
from clearhead.doctor.training.recording import Recording, at


@training_check("I06", "graph", order=10, covers=("I06",), holds="each backward reaches parameters")
def graph(recording: Recording) -> list[Finding]:
    """Every backward reaches some parameter."""
    for backward in recording.backwards:
        trainable = any(p.requires_grad for forward in backward.forwards for p in forward.module.parameters())
        if not backward.has_graph:
            witness = f"backward was called on a loss of {backward.loss:.4g} that has no graph"
            return [finding("I06", witness, value=0, where=at(backward.location, "backward"))]
        if backward.reached == 0 and trainable and not _is_flat(recording):
            witness = f"after the backward of a loss of {backward.loss:.4g} no parameter's gradient has changed"
            return [finding("I06", witness, value=0, where=at(backward.location, "backward"))]
    return []


def _is_flat(recording: Recording) -> bool:
    """Gradients are there, and all of them are zero."""
    accounts = recording.event_log.gradients.accounts.values()
    return any(account.present for account in accounts) and not any(account.reached for account in accounts)


@training_check(
    "R02", "numbers", order=20, covers=("R01", "R02"), holds="losses and gradients are finite", needs=("graph",)
)
def numbers(recording: Recording) -> list[Finding]:
    """Losses and the gradients that steps use are finite; the first that is not, as the rest follows from it."""
    for event in recording.timeline:
        if isinstance(event, Backward) and (math.isnan(event.loss) or (math.isinf(event.loss) and event.scale == 1)):
            return [finding("R01", f"the loss is {event.loss}", where=at(event.location, "backward"))]
        for use in event.uses if isinstance(event, OptimizerStep) else ():
            if use.not_finite:
                names = recording.listed(use.not_finite)
                witness = f"a step uses a gradient of {names} that is not finite, while the loss is"
                return [finding("R02", witness, where=recording.where(use.not_finite[0]))]
    return []


@training_check(
    "T01",
    "cleared",
    order=30,
    covers=("T01", "T02", "T11"),
    holds="a step takes what the backwards made since the last step, all of it, once",
    needs=("graph",),
)
def cleared(recording: Recording) -> list[Finding]:
    """A step takes what backwards made since the last one, all of it, and once."""
    for step in recording.steps:
        for number, use in enumerate(step.uses):
            if use.mixed:
                return [_mixed(recording, step)]
            if use.stale:
                witness = (
                    f"step {recording.number(step)} uses the gradient of {recording.listed(use.stale)} that an earlier "
                    "step used already, to the last bit"
                )
                return [finding("T01", witness, where=at(step.location, "step"))]
            if use.again:
                by = " a second time" if len(recording.steps_of(step.optimizer)) > 1 else ", as another optimizer did"
                witness = (
                    f"step {recording.number(step)} uses the gradient of {recording.listed(use.again)}{by}, with no "
                    "backward in between"
                )
                return [finding("T11", witness, where=at(step.location, "step"))]
            if step.optimizer and not use.with_gradient and (use.wiped or (use.backwards == 0 and number == 0)):
                return [_empty(recording, step)]
    return []


def _mixed(recording: Recording, step: OptimizerStep) -> Finding:
    mixture = max((mixture for use in step.uses for mixture in use.mixed), key=lambda each_mixture: each_mixture.old)
    witness = (
        f"the gradient of {recording.name(mixture.parameter)} that a step had used, of length {mixture.old:.3g}, was "
        f"still there when the next backward added its own of {mixture.own:.3g}; "
        f"step {recording.number(step)} uses the sum, of {mixture.total:.3g}"
    )
    return finding("T01", witness, value=mixture.total, threshold=mixture.own, where=at(step.location, "step"))


def _empty(recording: Recording, step: OptimizerStep) -> Finding:
    wiped = step.uses[0].wiped
    if wiped:
        witness = (
            f"a backward filled the gradients of {recording.listed(wiped)}, and all were empty when "
            f"step {recording.number(step)} came"
        )
    else:
        past = recording.timeline[: recording.timeline.index(step)]
        before = "yet" if not any(isinstance(event, Backward) for event in past) else "since the step before"
        witness = f"step {recording.number(step)} has no gradient: no backward was called {before}"
    return finding("T02", witness, value=0, where=at(step.location, "step"))
