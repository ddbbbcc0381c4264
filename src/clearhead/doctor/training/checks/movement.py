"""Whether steps move the weights, and how far."""

import math
from collections.abc import Iterator, Sequence

import torch

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import first_of, training_check
from clearhead.doctor.training.events import Move, OptimizerStep, Scaled, Scheduled, parameters_held
from clearhead.doctor.training.recording import Recording

FAR = 1.0  # times the norm of the weights: a step so long replaces them
HALF = (torch.float16, torch.bfloat16)
LOST = 0.5  # share of the numbers with a gradient that rounding leaves unchanged


@training_check(
    "T07",
    "movement",
    order=50,
    covers=("T07", "O07", "O12", "O13", "R05"),
    holds="what has a gradient moves, and by less than its own norm",
    needs=("graph", "numbers", "cleared"),
)
def movement(recording: Recording) -> list[Finding]:
    """A step moves every parameter that has a gradient, by less than its own norm."""
    if not recording.steps:
        return _no_step(recording)
    findings: list[Finding] = []
    for steps in recording.by_optimizer.values():
        findings += first_of(_rates(recording, steps), _stayed(recording, steps), _rounded(recording, steps))
        findings += first_of(_far(steps))
    return [*findings, *first_of(_idle(recording))]


def _no_step(recording: Recording) -> list[Finding]:
    skipped = [event for event in recording.events(Scaled) if event.method == "step"]
    if len(skipped) > 1:
        witness = f"the scaler skipped all {len(skipped)} steps: scaled by {skipped[0].scale:g} no gradient was finite"
        return [finding("T07", witness, value=len(skipped), where=skipped[0].where, status="warn")]
    unused = [a for a in recording.accounts if a.thrown_away > 1 and a.parameter.requires_grad]
    if unused:
        times = max(account.thrown_away for account in unused)
        names = recording.listed(account.parameter for account in unused)
        witness = f"gradients of {names} were computed and cleared {times} times, and no step has used one"
        return [finding("T07", witness, value=times, where=recording.backwards[0].where)]
    raise Skipped("no step was made")


def _rates(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    rates = [rate for step in steps for rate in step.rates]
    if any(rate < 0 for rate in rates):
        rate = next(rate for rate in rates if rate < 0)
        witness = f"the learning rate is {rate:.3g}: steps increase the loss"
        yield finding("O13", witness, value=rate, where=steps[0].where)
    elif rates and not any(rates) and len(steps) > 1 and not any(step.moved for step in steps):
        witness = f"the learning rate is 0 at all {len(steps)} steps, and no weight moves"
        driven = any(event.groups & steps[0].groups for event in recording.events(Scheduled))
        schedules = recording.schedules(steps[0].groups)
        unused = bool(schedules) and not driven
        if unused:
            witness += f"; step() of {type(schedules[0]).__name__}, which sets it, was not called between them"
        causes = (("O07", 0.8), ("O12", 0.2)) if unused else (("O12", 0.7), ("O07", 0.3))
        yield finding(causes, witness, value=0, where=steps[0].where)


def _moves(steps: Sequence[OptimizerStep], parameter: torch.Tensor) -> list[Move]:
    return [step.moves[id(parameter)] for step in steps if id(parameter) in step.moves]


def _stayed(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    parameters = {id(parameter): parameter for step in steps for parameter in step.parameters}.values()
    stayed = [
        parameter
        for parameter in parameters
        if any(m.has_gradient and m.can_move and m.rate > 0 and m.learns for m in _moves(steps, parameter))
        and not any(move.change for move in _moves(steps, parameter))
    ]
    if not stayed or len(steps) < 2:
        return
    whole = not any(step.moved for step in steps)
    what = f"no weight, such as {recording.name(stayed[0])}, moved" if whole else f"{recording.listed(stayed)} stayed"
    witness = (
        f"with a gradient and a learning rate of {max(steps[0].rates, default=0):.3g}, {what} in {len(steps)} steps of "
        f"{steps[0].name}"
    )
    where = steps[0].where if whole else recording.where(stayed[0])
    yield finding("T07", witness, value=0, where=where, status="warn" if recording.events(Scaled) else "fail")


def _rounded(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    """Weights in half precision with updates smaller than the spacing of their numbers."""
    lost = []
    for parameter in steps[-1].parameters:
        shares = [move.lost for move in _moves(steps, parameter) if move.has_gradient and move.rate > 0]
        if parameter.dtype in HALF and shares and min(shares) > LOST:
            lost.append((min(shares), parameter))
    if lost:
        share, parameter = max(lost, key=lambda pair: pair[0])
        kind = str(parameter.dtype).removeprefix("torch.")
        witness = (
            f"{share:.0%} of the numbers of {recording.name(parameter)} with a gradient stay: in {kind} the "
            f"next number is farther away than an update at rate {max(steps[-1].rates, default=0):.3g}"
        )
        yield finding("R05", witness, value=share, threshold=LOST, where=recording.where(parameter), status="warn")


def _far(steps: list[OptimizerStep]) -> Iterator[Finding]:
    for step in steps:
        if step.with_closure:
            continue  # it may consist of many small steps
        matrices = [step.moves[id(p)] for p in step.parameters if p.dim() > 1 and id(p) in step.moves]
        length = math.sqrt(sum(move.length**2 for move in matrices))
        change = math.sqrt(sum(move.change**2 for move in matrices if move.length > 0))
        if length and change > FAR * length:
            ratio = change / length
            rate = max(step.rates, default=0)
            witness = f"step {step.number} at rate {rate:.3g} moves the matrices by {ratio:.1f} times their norm"
            yield finding("O13", witness, value=ratio, threshold=FAR, where=step.where, status="warn")


def _idle(recording: Recording) -> Iterator[Finding]:
    """An optimizer of what is trained that never steps, although its parameters get gradients."""
    stepped = {id(parameter) for step in recording.steps for parameter in step.parameters}
    idle = {id(p) for p in recording.parameters if recording.was_reached(p)} - stepped
    for optimizer in recording.alive if idle and len(recording.steps) > 1 else ():
        accounts = [recording.account(p) for p in parameters_held(optimizer) if id(p) in idle]
        waiting = [a.parameter for a in accounts if a is not None and (a.thrown_away > 1 or a.touched)]
        if waiting:
            names = recording.listed(waiting)
            witness = f"{type(optimizer).__name__} holds {names}, which have gradients, and never steps"
            yield finding("T07", witness, value=0, where=recording.where(waiting[0]), status="warn")
