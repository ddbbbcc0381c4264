"""Whether steps move the weights, and how far."""

import math
from collections.abc import Iterator

import torch
from torch import nn

from clearhead.doctor.checks.base import Finding, Skipped, finding
from clearhead.doctor.training.checks import first_of, training_check
from clearhead.doctor.training.events import Move, OptimizerStep, Scaled, Scheduled, parameters_held
from clearhead.doctor.training.recording import Recording

FAR = 1.0  # times the norm of the weights: a step so long replaces them
HALF = (torch.float16, torch.bfloat16)
LOST = 0.5  # share of the numbers with a gradient that rounding leaves unchanged


@training_check("T07", "movement", order=50, covers=("O07", "O12", "O13", "R05"), needs=("graph", "numbers", "cleared"))
def movement(recording: Recording) -> list[Finding]:
    """What has a gradient moves, and by less than its own norm."""
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
    lowest = min(rates, default=0.0)
    if lowest < 0:
        witness = f"the learning rate is {lowest:.3g}: steps increase the loss"
        yield finding("O13", witness, value=lowest, where=steps[0].where)
    elif rates and not any(rates) and len(steps) > 1 and not any(step.moved for step in steps):
        witness = f"the learning rate is 0 at all {len(steps)} steps, and no weight moves"
        driven = any(event.groups & steps[0].groups for event in recording.events(Scheduled))
        unused = [] if driven else recording.schedules(steps[0].groups)
        if unused:
            witness += f"; step() of {type(unused[0]).__name__}, which sets it, was not called between them"
        causes = (("O07", 0.8), ("O12", 0.2)) if unused else (("O12", 0.7), ("O07", 0.3))
        yield finding(causes, witness, value=0, where=steps[0].where)


def _stayed(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    stayed = [
        parameter
        for parameter, moves in _moves(steps).items()
        if any(move.is_pushed and move.can_move and move.learns for move in moves)
        and not any(move.change for move in moves)
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


def _moves(steps: list[OptimizerStep]) -> dict[nn.Parameter, list[Move]]:
    moves: dict[nn.Parameter, list[Move]] = {}
    for parameter, move in (pair for step in steps for pair in step.moves.items()):
        moves.setdefault(parameter, []).append(move)
    return moves


def _rounded(recording: Recording, steps: list[OptimizerStep]) -> Iterator[Finding]:
    """Weights in half precision with updates smaller than the spacing of their numbers."""
    half = {parameter: moves for parameter, moves in _moves(steps).items() if parameter.dtype in HALF}
    lost = {p: min((move.lost for move in moves if move.is_pushed), default=0.0) for p, moves in half.items()}
    parameter = max(lost, key=lambda known: lost[known], default=None)
    if parameter is not None and lost[parameter] > LOST:
        share, kind = lost[parameter], str(parameter.dtype).removeprefix("torch.")
        witness = (
            f"{share:.0%} of the numbers of {recording.name(parameter)} with a gradient stay: in {kind} the "
            f"next number is farther away than an update at rate {max(steps[-1].rates, default=0):.3g}"
        )
        yield finding("R05", witness, value=share, threshold=LOST, where=recording.where(parameter))


def _far(steps: list[OptimizerStep]) -> Iterator[Finding]:
    for step in steps:
        matrices = [move for parameter, move in step.moves.items() if parameter.dim() > 1 and move.length > 0]
        length, change = math.hypot(*(m.length for m in matrices)), math.hypot(*(m.change for m in matrices))
        if length and change > FAR * length and not step.with_closure:  # which may consist of many small steps
            ratio = change / length
            rate = max(step.rates, default=0)
            witness = f"step {step.number} at rate {rate:.3g} moves the matrices by {ratio:.1f} times their norm"
            yield finding("O13", witness, value=ratio, threshold=FAR, where=step.where, status="warn")


def _idle(recording: Recording) -> Iterator[Finding]:
    """An optimizer of what is trained that never steps, although its parameters get gradients."""
    idle = {p for p in recording.parameters if recording.was_reached(p)} - recording.stepped
    for optimizer in recording.alive if idle and len(recording.steps) > 1 else ():
        accounts = [recording.account(parameter) for parameter in parameters_held(optimizer) if parameter in idle]
        waiting = [account.parameter for account in accounts if account.thrown_away > 1 or account.touched]
        if waiting:
            names = recording.listed(waiting)
            witness = f"{type(optimizer).__name__} holds {names}, which have gradients, and never steps"
            yield finding("T07", witness, value=0, where=recording.where(waiting[0]), status="warn")
