"""Whether steps move the weights, and how far."""

import math
from collections.abc import Iterator

import torch

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import OptimizerStep, Scaled, parameters_held
from clearhead.doctor.training.recording import Recording, at

FAR = 1.0  # of the weights' own length: a step so long puts others in their place
HALF = (torch.float16, torch.bfloat16)
LOST = 0.5  # share of the numbers with a gradient that rounding keeps where they are


@training_check(
    "T07",
    "movement",
    order=50,
    covers=("T07", "O07", "O12", "O13", "R05"),
    holds="what has a gradient moves, and by less than its own length",
    needs=("graph", "numbers", "cleared"),
)
def movement(recording: Recording) -> list[Finding]:
    """What has a gradient moves when a step is made, and not by more than it is long."""
    if not recording.steps:
        return _no_step(recording)
    findings: list[Finding] = []
    for optimizer in dict.fromkeys(step.optimizer for step in recording.steps):
        steps = recording.steps_of(optimizer)
        findings += [*_rates(recording, steps)] or [*_stayed(recording, steps)] or [*_rounded(recording, steps)]
        findings += _far(recording, steps)
    return [*findings, *_idle(recording)]


def _no_step(recording: Recording) -> list[Finding]:
    attempts = [e for e in recording.timeline if isinstance(e, Scaled) and e.method == "step" and not e.stepped]
    if len(attempts) > 1:
        witness = (
            f"the scaler left out all {len(attempts)} steps: scaled by {attempts[0].scale:g} no gradient was finite"
        )
        return [finding("T07", witness, value=len(attempts), where=at(attempts[0].location, "step"), status="warn")]
    thrown = [
        a for a in recording.event_log.gradients.accounts.values() if a.thrown_away > 1 and a.parameter.requires_grad
    ]
    if thrown:
        times = max(account.thrown_away for account in thrown)
        names = recording.listed(account.parameter for account in thrown)
        witness = f"gradients of {names} were made and cleared {times} times, and no step has used one"
        return [finding("T07", witness, value=times, where=at(recording.backwards[0].location, "backward"))]
    raise Skipped("no step was made")


def _rates(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    rates = [rate for step in steps for rate in step.rates]
    negative = [rate for rate in rates if rate < 0]
    if negative:
        witness = f"the learning rate is {negative[0]:.3g}: steps go up the loss"
        yield finding("O13", witness, value=negative[0], where=at(steps[0].location, "step"))
    elif rates and not any(rates) and len(steps) > 1 and not any(step.moved for step in steps):
        witness = f"the learning rate is 0 at all {len(steps)} steps, and no weight moves"
        driven = [event for event in recording.scheduled if event.groups & steps[0].groups]
        schedules = recording.schedules(steps[0].groups)
        if schedules and not driven:
            name = type(schedules[0]).__name__
            witness += f"; {name}, which sets it, was not told to go on between them"
            yield finding((("O07", 0.8), ("O12", 0.2)), witness, value=0, where=at(steps[0].location, "step"))
        else:
            yield finding((("O12", 0.7), ("O07", 0.3)), witness, value=0, where=at(steps[0].location, "step"))


def _stayed(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    by_id = {id(parameter): parameter for step in steps for parameter in step.parameters}
    stayed = []
    for key, parameter in by_id.items():
        moves = [step.moves[key] for step in steps if key in step.moves]
        pushed = [move for move in moves if move.has_gradient and move.can_move and move.rate > 0 and move.learns]
        if pushed and not any(move.change for move in moves):
            stayed.append(parameter)
    if not stayed or len(steps) < 2:
        return
    whole = not any(step.moved for step in steps)
    what = f"no weight, such as {recording.name(stayed[0])}," if whole else recording.listed(stayed)
    witness = (
        f"with a gradient and a learning rate of {max(steps[0].rates, default=0):.3g}, {what} moved in "
        f"{len(steps)} steps of {steps[0].name}"
    )
    if not whole:
        witness = witness.replace(" moved in", " did not move in")
    scaled = any(isinstance(event, Scaled) for event in recording.timeline)
    where = at(steps[0].location, "step") if whole else recording.where(stayed[0])
    yield finding("T07", witness, value=0, where=where, status="warn" if scaled else "fail")


def _rounded(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    """Weights of half precision whose updates are smaller than the spacing of their numbers."""
    lost = []
    for parameter in steps[-1].parameters:
        moves = [step.moves[id(parameter)] for step in steps if id(parameter) in step.moves]
        pushed = [move for move in moves if move.has_gradient and move.rate > 0]
        if parameter.dtype in HALF and pushed and min(move.lost for move in pushed) > LOST:
            lost.append((min(move.lost for move in pushed), parameter))
    if lost:
        share, parameter = max(lost, key=lambda pair: pair[0])
        kind = str(parameter.dtype).removeprefix("torch.")
        witness = (
            f"{share:.0%} of the numbers of {recording.name(parameter)} with a gradient stay: in {kind} the "
            f"next number is further away than a step at rate {max(steps[-1].rates, default=0):.3g} goes"
        )
        yield finding("R05", witness, value=share, threshold=LOST, where=recording.where(parameter), status="warn")


def _far(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    for step in steps:
        if step.with_closure:
            continue  # many small steps may hide in it
        matrices = [step.moves[id(p)] for p in step.parameters if p.dim() > 1 and id(p) in step.moves]
        length = math.sqrt(sum(move.length**2 for move in matrices))
        change = math.sqrt(sum(move.change**2 for move in matrices if move.length > 0))
        if length and change > FAR * length:
            witness = (
                f"step {recording.number(step)} at rate {max(step.rates, default=0):.3g} moves the matrices by "
                f"{change / length:.1f} times their own length"
            )
            where = at(step.location, "step")
            yield finding("O13", witness, value=change / length, threshold=FAR, where=where, status="warn")
            return


def _idle(recording: Recording) -> Iterator[Finding]:
    """An optimizer of what is trained that never steps, while its gradients come and go."""
    stepped = {id(parameter) for step in recording.steps for parameter in step.parameters}
    accounts = {id(parameter): recording.account(parameter) for parameter in recording.parameters}
    idle = {key for key, account in accounts.items() if account is not None and account.reached} - stepped
    for optimizer in recording.alive if idle else ():
        held = [parameter for parameter in parameters_held(optimizer) if id(parameter) in idle]
        waiting = [a for p in held if (a := accounts[id(p)]) is not None and (a.thrown_away > 1 or a.touched)]
        if len(recording.steps) > 1 and waiting:
            names = recording.listed(account.parameter for account in waiting)
            witness = f"{type(optimizer).__name__} holds {names}, which have gradients, and never steps"
            yield finding("T07", witness, value=0, where=recording.where(held[0]), status="warn")
            return
