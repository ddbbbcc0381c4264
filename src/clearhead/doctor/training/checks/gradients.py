"""Whether gradients exist, are finite, and are used once each."""

import math
from collections.abc import Iterator

from torch import nn

from clearhead.doctor.checks.base import Finding, Skipped, attempt, finding
from clearhead.doctor.checks.parts.effects import NUDGE
from clearhead.doctor.checks.parts.gradients import SOMETIMES
from clearhead.doctor.training.checks import first_of, training_check
from clearhead.doctor.training.events import Backward, Forward, OptimizerStep
from clearhead.doctor.training.gradient_log import Use
from clearhead.doctor.training.recording import Recording
from clearhead.doctor.training.trials import CLOSE, effect, has_gradient, trying

TRIED = 24  # parameters whose effect is measured
WITHOUT_GRADIENT = {  # what other numbers in such parameters do
    "I06": "change what the loss reads, and no gradient reaches them",
    "A13": "change nothing that the loss reads",
}


@training_check("I06", "graph", order=10)
def graph(recording: Recording) -> list[Finding]:
    """Each backward reaches parameters."""
    vanished = any(a.present for a in recording.accounts) and not any(a.reached for a in recording.accounts)
    for backward in recording.backwards:
        trainable = any(p.requires_grad for forward in backward.forwards for p in forward.module.parameters())
        if not backward.has_graph:
            witness = f"backward was called on a loss of {backward.loss:.4g} that has no graph"
        elif backward.reached == 0 and trainable and not vanished:
            witness = f"after the backward of a loss of {backward.loss:.4g} no parameter's gradient has changed"
        else:
            continue
        return [finding("I06", witness, value=0, where=backward.where)]
    return []


@training_check("R02", "numbers", order=20, covers=("R01",), needs=("graph",))
def numbers(recording: Recording) -> list[Finding]:
    """Losses and gradients are finite."""
    for event in recording.timeline:  # only the first that is not is reported: the rest follows
        if isinstance(event, Backward) and (math.isnan(event.loss) or (math.isinf(event.loss) and event.scale == 1)):
            return [finding("R01", f"the loss is {event.loss}", where=event.where)]
        for use in event.uses if isinstance(event, OptimizerStep) else ():
            if use.not_finite:
                names = recording.listed(use.not_finite)
                witness = f"a step uses a gradient of {names} that is not finite, although the loss is"
                return [finding("R02", witness, where=recording.where(use.not_finite[0]))]
    return []


@training_check("T01", "cleared", order=30, covers=("T02", "T11"), needs=("graph",))
def cleared(recording: Recording) -> list[Finding]:
    """A step uses what the backwards since the last step computed, all of it, once."""
    return first_of(*(_misused(recording, step, use) for step in recording.steps for use in step.uses))


def _misused(recording: Recording, step: OptimizerStep, use: Use) -> Iterator[Finding]:
    """Gradients that an earlier step had used, or none at all."""
    if use.mixed:
        mixed = {parameter: norms for use in step.uses for parameter, norms in use.mixed.items()}
        parameter, (old, own, total) = max(mixed.items(), key=lambda mixture: mixture[1])
        witness = (
            f"the gradient of {recording.name(parameter)} that a step had used, of norm {old:.3g}, was still there "
            f"when the next backward added its own of {own:.3g}; step {step.number} uses the sum, of {total:.3g}"
        )
        yield finding("T01", witness, value=total, threshold=own, where=step.where)
    if use.again:
        by = " a second time" if len(recording.by_optimizer[step.optimizer]) > 1 else ", as another optimizer did"
        names = recording.listed(use.again)
        witness = f"step {step.number} uses the gradient of {names}{by}, with no backward in between"
        yield finding("T11", witness, where=step.where)
    if not step.optimizer or use.with_gradient:
        return
    if use.wiped:
        witness = f"a backward filled the gradients of {recording.listed(use.wiped)}, and all were empty at step"
        yield finding("T02", f"{witness} {step.number}", value=0, where=step.where)
    elif use.backwards == 0 and use is step.uses[0]:
        earlier, _ = recording.around(step)
        before = "since the step before" if any(isinstance(event, Backward) for event in earlier) else "yet"
        witness = f"step {step.number} has no gradient: no backward was called {before}"
        yield finding("T02", witness, value=0, where=step.where)


@training_check("A13", "effects", order=130, covers=("I06",), needs=("graph", "coverage"))
def effects(recording: Recording) -> list[Finding]:
    """What is to be trained and has an effect has a gradient."""
    if not recording.steps or not recording.learned:
        raise Skipped("no step was made")
    guilty: dict[str, list[nn.Parameter]] = {}
    for forward in {forward.module: forward for forward in recording.learned}.values():
        parameters = [p for p in forward.module.parameters() if p.requires_grad and recording.is_held(p)]
        bare = [parameter for parameter in parameters if not recording.account(parameter).present]
        if not bare:
            continue
        with attempt() as attempted, trying(recording, forward.module):
            for parameter in bare[:TRIED]:
                guilty.setdefault(_fault_of(parameter, recording.name(parameter), forward), []).append(parameter)
        if attempted.failed:
            raise Skipped(f"the batch could not be run again ({attempted.kind})")
    for id, what in WITHOUT_GRADIENT.items():
        if parameters := guilty.get(id, []):
            witness = f"other numbers in {recording.listed(parameters)} {what}"
            return [finding(id, witness, value=0, where=recording.where(parameters[0]))]
    return []


def _fault_of(parameter: nn.Parameter, name: str, forward: Forward) -> str:
    """Whether one without a gradient is cut off or does nothing. A part that is only left out at times is neither."""
    training = forward.training
    if effect(forward, parameter, training=training) > CLOSE:
        # numbers that others are only compared with, to balance experts, have no gradient and need none
        is_balance = parameter.dim() < 2 and not effect(forward, parameter, training=training, size=NUDGE)
        return "" if is_balance or has_gradient(forward, parameter, training=training) else "I06"
    is_idle = not SOMETIMES.search(name) and effect(forward, parameter, training=False) <= CLOSE
    return "A13" if is_idle else ""
