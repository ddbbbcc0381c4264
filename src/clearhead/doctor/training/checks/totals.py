"""What the weights of all tokens that one step learns from add up to."""

from collections.abc import Iterator
from itertools import pairwise

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.probes.loss import STRAIGHT
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import Backward, OptimizerStep, Scaled
from clearhead.doctor.training.logits import LogitsXray
from clearhead.doctor.training.recording import Recording, at

EVEN = 1e-3  # relative: sums that are meant to be equal
UNEVEN = 0.01  # relative difference of the weights of tokens of two micro-batches

Part = tuple[Backward, LogitsXray]


@training_check(
    "T03",
    "totals",
    order=120,
    covers=("T03", "L01", "L10"),
    holds="the weights of all tokens of a step sum to one, however the batch was cut",
    needs=("asking",),
)
def totals(recording: Recording) -> list[Finding]:
    """A mean over all tokens of a step: weights that sum to one, however the batch was cut."""
    thrown = [*_thrown_away(recording)]
    if thrown:
        return thrown
    steps = [(parts, step) for parts, step in _parts(recording) if parts]
    if not steps:
        raise Skipped("no logits over tokens were found between the model and its loss")
    for parts, step in steps:
        if any(
            question.total is None or question.xray.residual > STRAIGHT or not question.count for _, question in parts
        ):
            raise Skipped("the weights of the tokens could not be read")
        findings = list(_of_one(parts[0])) if len(parts) == 1 else list(_of_several(parts, step))
        if findings:
            return findings
    return []


def _thrown_away(recording: Recording) -> Iterator[Finding]:
    """Micro-batches whose gradient is cleared before the next one's, so that the step uses the last one only."""
    current: list[Backward] = []
    for event in recording.timeline:
        if isinstance(event, OptimizerStep):
            cleared = [
                later for earlier, later in pairwise(current) if later.location == earlier.location and earlier.reached
            ]
            if cleared and all(later.cleared >= later.reached > 0 for later in cleared) and event.uses[0].with_gradient:
                witness = (
                    f"{len(current)} backwards come before step {recording.number(event)}, and the gradients of "
                    f"{len(cleared)} of them were cleared before it"
                )
                yield finding("T03", witness, value=len(cleared), where=at(cleared[0].location, "backward"))
                return
        if isinstance(event, OptimizerStep) or (isinstance(event, Scaled) and event.method == "step"):
            current = []
        elif isinstance(event, Backward) and not event.in_step:
            current.append(event)


def _parts(recording: Recording) -> Iterator[tuple[list[Part], OptimizerStep]]:
    """For each step, what was asked since the one before; one entry per backward of the same line."""
    mine = {id(question) for question in recording.xrays}
    current: list[Part] = []
    for event in recording.timeline:
        if isinstance(event, Backward) and not event.in_step:
            current += [(event, question) for question in event.xrays if id(question) in mine]
        elif isinstance(event, OptimizerStep):
            places = {backward.location for backward, _ in current}
            models = {(id(question.forward.module), question.logits.shape[-1]) for _, question in current}
            once = len({id(backward) for backward, _ in current}) == len(current)
            if len(places) == len(models) == 1 and once:
                yield current, event
            current = []


def _of_one(part: Part) -> Iterator[Finding]:
    backward, question = part
    total, count = question.total or 0.0, question.count
    rows, columns = question.ids.shape
    where = at(backward.location, "backward")
    if _is(total, 1.0) or count < 2:
        return
    if _is(total, count):
        witness = f"the weights of {count} tokens sum to {total:.1f}: each counts as much as a whole batch should"
        yield finding("L10", witness, value=total, threshold=1, where=where, status="warn")
        return
    for everything in (rows * columns, rows * (columns - 1)):
        if count < everything and _is(total, count / everything):
            witness = (
                f"{count} tokens are scored, and the loss is divided by {everything}: the weights sum to {total:.4f}"
            )
            yield finding("L01", witness, value=total, threshold=1, where=where)
            return


def _of_several(parts: list[Part], step: OptimizerStep) -> Iterator[Finding]:
    if any(_is(use.scaled * len(parts), 1.0) for use in step.uses):
        return  # the sum of the gradients was divided by hand
    sums = [question.total or 0.0 for _, question in parts]
    where = at(parts[0][0].location, "backward")
    if all(_is(total, 1.0) for total in sums):
        witness = (
            f"each of {len(parts)} micro-batches has weights that sum to 1: the step's gradient is {len(parts)} times "
            "that of the whole batch"
        )
        yield finding("T03", witness, value=sum(sums), threshold=1, where=where)
        return
    if not _is(sum(sums), 1.0):
        return
    shares = [total / question.count for total, (_, question) in zip(sums, parts, strict=True)]
    if max(shares) > (1 + UNEVEN) * min(shares):
        counts = [question.count for _, question in parts]
        witness = (
            f"micro-batches of {min(counts)} and of {max(counts)} scored tokens count alike, so a token weighs up to "
            f"{max(shares) / min(shares):.2f} times as much as another; in the whole batch all weigh the same"
        )
        yield finding("T03", witness, value=max(shares) / min(shares), threshold=1 + UNEVEN, where=where, status="warn")


def _is(value: float, expected: float) -> bool:
    return abs(value - expected) <= EVEN * abs(expected)
