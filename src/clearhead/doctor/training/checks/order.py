"""The order in which a loop clips, steps and schedules."""

import copy
import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile

from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from clearhead.doctor.checks.base import Finding, Skipped, attempt, finding
from clearhead.doctor.training.checks import first_of, training_check
from clearhead.doctor.training.events import Backward, Clip, Event, Forward, OptimizerStep, Scaled, Scheduled, rates_of
from clearhead.doctor.training.recording import Recording

MEASURING = 1e6  # a limit above which clipping only serves to return the norm
AHEAD = 20_000  # steps of a schedule that are looked at
SPENT = 0.01  # of the largest rate
CLOSE = 1.01  # times the limit: a clipped gradient may exceed it by rounding


@training_check("T05", "clipping", order=60, covers=("T04",))
def clipping(recording: Recording) -> list[Finding]:
    """Gradients are clipped between the last backward and the step, and unscaled."""
    clips = [c for c in recording.events(Clip) if c.limit < MEASURING and math.isfinite(c.limit)]
    if not clips:
        raise Skipped("no gradient is clipped")
    return first_of(*(_misplaced(recording, clip) for clip in clips))


def _misplaced(recording: Recording, clip: Clip) -> Iterator[Finding]:
    past, coming = (
        [event for event in events if not isinstance(event, OptimizerStep) or clip.parameters & {*event.parameters}]
        for events in recording.around(clip)
    )
    fault = partial(finding, "T05", where=clip.where)
    last = next((event for event in past if isinstance(event, (Backward, OptimizerStep))), None)
    unscaled = any(
        isinstance(event, Scaled) and event.method == "unscale_"
        for event in takewhile(lambda event: event is not last, past)
    )
    if isinstance(last, Backward) and last.scale > 1 and not unscaled:
        witness = f"clipped to {clip.limit:g} while the gradient, of size {clip.size:.3g}, is scaled by {last.scale:g}"
        yield finding("T04", witness, value=clip.size, threshold=clip.limit, where=clip.where)
    if last is None:
        yield fault(f"clipped to {clip.limit:g} before any backward", value=clip.size, threshold=clip.limit)
    elif isinstance(last, OptimizerStep):
        used = last.uses[-1].length if last.uses else 0.0
        witness = (
            f"clipped to {clip.limit:g} after step {last.number} had used a gradient of norm {used:.3g}, and before "
            "the next backward"
        )
        yield fault(witness, value=used, threshold=clip.limit)
    elif not clip.gradients and any(step.uses and step.uses[-1].with_gradient for step in recording.steps):
        held = len(clip.parameters)
        witness = f"the call that clips got {held} parameters and none with a gradient, while the steps have some"
        yield fault(witness, value=0)
    yield from _early(clip, coming)


def _early(clip: Clip, coming: Sequence[Event]) -> Iterator[Finding]:
    """More was added to the gradients between the clipping and the step."""
    step = next((event for event in coming if isinstance(event, OptimizerStep)), None)
    between = list(takewhile(lambda event: event is not step, coming))
    added = any(isinstance(event, Backward) and event.reached for event in between)
    if step is None or step.with_closure or not clip.by_norm or not step.uses or not added:
        return
    if not clip.parameters.issuperset(step.parameters):
        return
    number = 1 + sum(isinstance(event, Clip) and event.where == clip.where for event in between)
    length = step.uses[-1].length
    if number > 1:
        witness = f"{number} clips between two steps: each micro-batch is clipped together with those before it"
        yield finding("T05", witness, value=number, threshold=1, where=clip.where, status="warn")
    elif length > CLOSE * clip.limit:
        witness = (
            f"clipped to {clip.limit:g} before the last backward; step {step.number} uses a gradient of norm "
            f"{length:.3g}"
        )
        yield finding("T05", witness, value=length, threshold=clip.limit, where=clip.where)


@training_check("O09", "scheduling", order=70, covers=("O08", "O15"))
def scheduling(recording: Recording) -> list[Finding]:
    """The schedule steps after the optimizer."""
    scheduled = recording.events(Scheduled)
    if not scheduled:
        raise Skipped("no scheduler stepped")
    findings: list[Finding] = []
    for scheduler in dict.fromkeys(event.scheduler for event in scheduled):
        events = [event for event in scheduled if event.scheduler == scheduler]
        findings += first_of(_of_another(recording, events), _too_often(recording, events), _before(recording, events))
        findings += first_of(_for_epochs(recording, events))
    return findings


def _drives(step: OptimizerStep, event: Scheduled) -> bool:
    return bool(event.groups & step.groups)


def _of_another(recording: Recording, events: list[Scheduled]) -> Iterator[Finding]:
    steps = [step for step in recording.steps if step.optimizer]
    if not steps or any(_drives(step, events[0]) for step in steps) or events[0].before == events[-1].after:
        return
    witness = (
        f"{events[0].name} changes the rate of an optimizer that never steps from {_shown(events[0].before)} to "
        f"{_shown(events[-1].after)}; {steps[0].name}, which does, stays at {_shown(steps[-1].rates)}"
    )
    yield finding("O15", witness, where=events[0].where)


def _too_often(recording: Recording, events: list[Scheduled]) -> Iterator[Finding]:
    """Once for every micro-batch."""
    count, computed = 0, False
    for event in recording.timeline:
        if isinstance(event, OptimizerStep) and _drives(event, events[0]):
            count, computed = 0, False
        elif event in events:
            count += 1
            if count > 1 and computed:
                witness = (
                    f"{events[0].name} steps after a backward that no step follows, more than once between two steps"
                )
                yield finding("O08", witness, value=count, threshold=1, where=event.where, status="warn")
        computed = computed or isinstance(event, Backward)


def _for_epochs(recording: Recording, events: list[Scheduled]) -> Iterator[Finding]:
    """A schedule of epochs that steps with each batch: soon in the first pass its rate is next to nothing.

    One that ends, at zero or by raising, may be meant for a short training, and so may any function of the step.
    """
    steps = [step for step in recording.steps if _drives(step, events[0])]
    scheduler = next(held for held in recording.event_log.kept if id(held) == events[0].scheduler)
    ahead = min(events[0].batches // 10, AHEAD) - len(events)
    if (
        ahead <= 0
        or len(events) < max(2, len(steps) - 1)
        or not isinstance(scheduler, LRScheduler)
        or isinstance(scheduler, LambdaLR)
    ):
        return
    optimizer, state = scheduler.optimizer, copy.deepcopy(scheduler.state_dict())
    rates, reached = rates_of(optimizer), [events[0].before]
    with warnings.catch_warnings(), attempt() as attempted:  # it may end, or go by a score
        warnings.simplefilter("ignore")
        for _ in range(ahead):
            scheduler.step()
            reached.append(rates_of(optimizer))
    scheduler.load_state_dict(state)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    peak, last = max(map(max, reached)), max(reached[-1])
    if not attempted.failed and 0 < last < SPENT * peak:
        witness = (
            f"{events[0].name} steps with each batch, and after a tenth of the {events[0].batches:,} batches of one "
            f"pass its rate has fallen from {peak:.3g} to {last:.3g}: it counts epochs"
        )
        yield finding("O08", witness, value=last, threshold=SPENT * peak, where=events[-1].where)


def _before(recording: Recording, events: list[Scheduled]) -> Iterator[Finding]:
    """Between the backward and the step; or once before everything, so that its first rate is never used."""
    for event in events:
        past, coming = recording.around(event)
        last, following = (next(filter(_is_landmark, side), None) for side in (past, coming))
        rates = f"from {_shown(event.before)} to {_shown(event.after)}"
        if isinstance(last, Backward) and isinstance(following, OptimizerStep) and _drives(following, event):
            witness = f"{event.name} goes {rates} before step {following.number} has used the first of them"
            yield finding("O09", witness, where=event.where)
        again = next((index for index, known in enumerate(coming) if known in events), 0)
        unused = last is None and event.fresh and event.before != event.after
        if unused and any(isinstance(known, Forward) for known in coming[:again]):
            witness = f"{event.name} goes {rates} before any step was made"
            yield finding("O09", witness, where=event.where, status="warn")


def _is_landmark(event: Event) -> bool:
    if isinstance(event, Scaled):
        return event.method == "step"
    return isinstance(event, (Backward, OptimizerStep)) or (isinstance(event, Forward) and event.with_gradient)


def _shown(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:.3g}" for rate in rates[:2]) or "nothing"
