"""The order in which a loop clips, steps and schedules."""

import math
from collections.abc import Iterator, Sequence

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import Backward, Clip, Event, Forward, OptimizerStep, Scaled, Scheduled
from clearhead.doctor.training.recording import Recording, at

MEASURING = 1e6  # a limit above which a clip is there for the norm that it returns
CLOSE = 1.01  # of the limit: how much longer a clipped gradient may be by rounding


@training_check(
    "T05",
    "clipping",
    order=60,
    covers=("T04", "T05"),
    holds="gradients are clipped between the last backward and the step, and unscaled",
)
def clipping(recording: Recording) -> list[Finding]:
    """Gradients are bounded after they are complete and before they are used."""
    clips = [clip for clip in recording.clips if clip.limit < MEASURING and math.isfinite(clip.limit)]
    if not clips:
        raise Skipped("no gradient is clipped")
    for clip in clips:
        past, coming = _around(recording, clip)
        findings = [*_scaled(clip, past), *_useless(recording, clip, past), *_early(recording, clip, coming)]
        if findings:
            return findings[:1]
    return []


def _around(recording: Recording, clip: Clip) -> tuple[Sequence[Event], Sequence[Event]]:
    """What happened to these gradients before and after."""
    index = next(number for number, event in enumerate(recording.timeline) if event is clip)

    def concerns(event: Event) -> bool:
        return not isinstance(event, OptimizerStep) or bool(
            clip.parameters & {id(parameter) for parameter in event.parameters}
        )

    timeline = recording.timeline
    return [*filter(concerns, timeline[:index])], [*filter(concerns, timeline[index + 1 :])]


def _scaled(clip: Clip, past: Sequence[Event]) -> Iterator[Finding]:
    for event in reversed(past):
        if isinstance(event, OptimizerStep) or (isinstance(event, Scaled) and event.method == "unscale_"):
            return
        if isinstance(event, Backward):
            if event.scale > 1:
                witness = (
                    f"clipped to {clip.limit:g} while the gradient, of size {clip.size:.3g}, is still scaled by "
                    f"{event.scale:g}"
                )
                yield finding("T04", witness, value=clip.size, threshold=clip.limit, where=at(clip.location, "clip"))
            return


def _useless(recording: Recording, clip: Clip, past: Sequence[Event]) -> Iterator[Finding]:
    last = next((event for event in reversed(past) if isinstance(event, (Backward, OptimizerStep))), None)
    where = at(clip.location, "clip")
    if last is None:
        witness = f"clipped to {clip.limit:g} before any backward"
        yield finding("T05", witness, value=clip.size, threshold=clip.limit, where=where)
    elif isinstance(last, OptimizerStep):
        used = last.uses[-1].length if last.uses else 0.0
        witness = (
            f"clipped to {clip.limit:g} after step {recording.number(last)} had used a gradient of length {used:.3g}, "
            "and before the next backward"
        )
        yield finding("T05", witness, value=used, threshold=clip.limit, where=where)
    elif not clip.gradients and any(step.uses and step.uses[-1].with_gradient for step in recording.steps):
        held = len(clip.parameters)
        witness = f"the clip was given {held} parameters and none with a gradient, while the steps have some"
        yield finding("T05", witness, value=0, where=where)


def _early(recording: Recording, clip: Clip, coming: Sequence[Event]) -> Iterator[Finding]:
    """More was added to the gradients between the clip and the step."""
    places = [number for number, event in enumerate(coming) if isinstance(event, OptimizerStep)]
    if not places:
        return
    step = coming[places[0]]
    between = coming[: places[0]]
    added = [event for event in between if isinstance(event, Backward) and event.reached]
    assert isinstance(step, OptimizerStep)
    if not added or step.with_closure or not clip.by_norm or not step.uses:
        return
    whole = {id(parameter) for parameter in step.parameters} <= clip.parameters
    again = [event for event in between if isinstance(event, Clip) and event.location == clip.location]
    where = at(clip.location, "clip")
    if again and whole:
        witness = f"{len(again) + 1} clips between two steps: each micro-batch is bounded together with those before it"
        yield finding("T05", witness, value=len(again) + 1, threshold=1, where=where, status="warn")
    elif whole and step.uses[-1].length > CLOSE * clip.limit:
        witness = (
            f"clipped to {clip.limit:g} before the last backward; step {recording.number(step)} uses one of length "
            f"{step.uses[-1].length:.3g}"
        )
        yield finding("T05", witness, value=step.uses[-1].length, threshold=clip.limit, where=where)


@training_check(
    "O09", "scheduling", order=70, covers=("O08", "O09", "O15"), holds="the schedule steps after the optimizer"
)
def scheduling(recording: Recording) -> list[Finding]:
    """A schedule goes on after each step of the optimizer that it drives."""
    if not recording.scheduled:
        raise Skipped("no scheduler was told to go on")
    findings: list[Finding] = []
    for scheduler in dict.fromkeys(event.scheduler for event in recording.scheduled):
        events = [event for event in recording.scheduled if event.scheduler == scheduler]
        findings += (
            [*_of_another(recording, events)] or [*_too_often(recording, events)] or [*_before(recording, events)]
        )
    return findings


def _drives(step: OptimizerStep, event: Scheduled) -> bool:
    return bool(event.groups & step.groups)


def _of_another(recording: Recording, events: list[Scheduled]) -> Iterator[Finding]:
    steps = [step for step in recording.steps if step.optimizer]
    if not steps or any(_drives(step, events[0]) for step in steps) or events[0].before == events[-1].after:
        return
    witness = (
        f"{events[0].name} brings the rate of an optimizer that never steps from {_shown(events[0].before)} to "
        f"{_shown(events[-1].after)}; {steps[0].name}, which does, stays at {_shown(steps[-1].rates)}"
    )
    yield finding("O15", witness, where=at(events[0].location, "step"))


def _too_often(recording: Recording, events: list[Scheduled]) -> Iterator[Finding]:
    """Once for every micro-batch."""
    count, backwards = 0, 0
    for event in recording.timeline:
        if isinstance(event, OptimizerStep) and _drives(event, events[0]):
            count, backwards = 0, 0
        elif isinstance(event, Backward):
            backwards += 1
        elif isinstance(event, Scheduled) and event.scheduler == events[0].scheduler:
            count += 1
            if count > 1 and backwards:
                witness = (
                    f"{event.name} goes on after a backward that no step follows, more than once between two steps"
                )
                yield finding("O08", witness, value=count, threshold=1, where=at(event.location, "step"), status="warn")
                return


def _before(recording: Recording, events: list[Scheduled]) -> Iterator[Finding]:
    """Between the backward and the step; or once before everything, so that its first rate is never used."""
    timeline = recording.timeline
    for event in events:
        index = next(number for number, known in enumerate(timeline) if known is event)
        last = next((e for e in reversed(timeline[:index]) if _is_landmark(e)), None)
        coming = next((e for e in timeline[index + 1 :] if _is_landmark(e)), None)
        rates = f"from {_shown(event.before)} to {_shown(event.after)}"
        where = at(event.location, "step")
        if isinstance(last, Backward) and isinstance(coming, OptimizerStep) and _drives(coming, event):
            witness = f"{event.name} goes {rates} before step {recording.number(coming)} has used the first of them"
            yield finding("O09", witness, where=where)
            return
        again = next((other for other in events if other is not event), None)
        if last is None and event.fresh and again is not None and event.before != event.after:
            second = next(number for number, known in enumerate(timeline) if known is again)
            if any(isinstance(known, Forward) for known in timeline[index:second]):
                witness = f"{event.name} goes {rates} before any step was made"
                yield finding("O09", witness, where=where, status="warn")
                return


def _is_landmark(event: Event) -> bool:
    attempt = isinstance(event, Scaled) and event.method == "step"
    return (
        attempt or isinstance(event, (Backward, OptimizerStep)) or (isinstance(event, Forward) and event.with_gradient)
    )


def _shown(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:.3g}" for rate in rates[:2]) or "nothing"
