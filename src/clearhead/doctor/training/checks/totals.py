"""What the weights of all tokens that one step learns from add up to."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from clearhead.doctor.checks.base import Finding, Skipped, finding
from clearhead.doctor.checks.loss.judge import of_total
from clearhead.doctor.probes.loss import STRAIGHT
from clearhead.doctor.training.checks import first_of, training_check
from clearhead.doctor.training.events import Backward, OptimizerStep, Scaled
from clearhead.doctor.training.logits import LogitsXray
from clearhead.doctor.training.recording import Recording

EVEN = 1e-3  # relative: sums that should be equal
UNEVEN = 0.01  # relative difference of the weights of tokens of two micro-batches

Part = tuple[Backward, LogitsXray]


@training_check("T03", "totals", order=120, covers=("L01", "L10"), needs=("asking",))
def totals(recording: Recording) -> list[Finding]:
    """The weights of all tokens of a step sum to one, however the batch was split."""
    if cleared := first_of(_cleared(recording)):
        return cleared
    steps = [(parts, step) for parts, step in _parts(recording) if parts]
    if not steps:
        raise Skipped("no logits over tokens were found between the model and its loss")
    for parts, step in steps:
        if any(xray.total is None or xray.xray.residual > STRAIGHT or not xray.count for _, xray in parts):
            raise Skipped("the weights of the tokens could not be read")
        backward, xray = parts[0]
        positions = (xray.ids.numel(), xray.ids.numel() - len(xray.ids))  # all, or all but the last of each row
        alone = of_total(xray.total or 0.0, xray.count, positions) if len(parts) == 1 else []
        findings = [*_of_several(parts, step)] or [replace(fault, where=backward.where) for fault in alone]
        if findings:
            return findings
    return []


def _cleared(recording: Recording) -> Iterator[Finding]:
    """Micro-batches whose gradient is cleared before the next one's, so that the step uses only the last."""
    for events, step in recording.spans:
        attempts = [n for n, event in enumerate(events) if isinstance(event, Scaled) and event.method == "step"]
        events = events[attempts[-1] + 1 :] if attempts else events
        backwards = [event for event in events if isinstance(event, Backward) and not event.in_step]
        later = [second for first, second in pairwise(backwards) if first.where == second.where and first.reached]
        if later and all(b.cleared >= b.reached > 0 for b in later) and step.uses[0].with_gradient:
            witness = (
                f"{len(backwards)} backwards come before step {step.number}, and the gradients of {len(later)} of them "
                "were cleared before it"
            )
            yield finding("T03", witness, value=len(later), where=later[0].where)


def _parts(recording: Recording) -> Iterator[tuple[list[Part], OptimizerStep]]:
    """For each step, the X-rays of its backwards; only where all are of one line and of one model."""
    known = {id(xray) for xray in recording.xrays}
    for events, step in recording.spans:
        backwards = [event for event in events if isinstance(event, Backward) and not event.in_step]
        parts = [(backward, xray) for backward in backwards for xray in backward.xrays if id(xray) in known]
        lines = {backward.where for backward, _ in parts}
        models = {(id(xray.forward.module), xray.logits.shape[-1]) for _, xray in parts}
        once = len({id(backward) for backward, _ in parts}) == len(parts)
        if len(lines) == len(models) == 1 and once:
            yield parts, step


def _of_several(parts: list[Part], step: OptimizerStep) -> Iterator[Finding]:
    if len(parts) < 2 or any(_is(use.scaled * len(parts), 1.0) for use in step.uses):
        return  # the sum of the gradients was divided by hand
    sums = [xray.total or 0.0 for _, xray in parts]
    where = parts[0][0].where
    if all(_is(total, 1.0) for total in sums):
        witness = (
            f"each of {len(parts)} micro-batches has weights that sum to 1: the step's gradient is {len(parts)} times "
            "that of the whole batch"
        )
        yield finding("T03", witness, value=sum(sums), threshold=1, where=where)
        return
    counts = [xray.count for _, xray in parts]
    shares = [total / count for total, count in zip(sums, counts, strict=True)]
    if _is(sum(sums), 1.0) and max(shares) > (1 + UNEVEN) * min(shares):
        ratio = max(shares) / min(shares)
        witness = (
            f"micro-batches of {min(counts)} and of {max(counts)} scored tokens count alike, so a token weighs up to "
            f"{ratio:.2f} times as much as another; in the whole batch all weigh the same"
        )
        yield finding("T03", witness, value=ratio, threshold=1 + UNEVEN, where=where, status="warn")


def _is(value: float, expected: float) -> bool:
    return abs(value - expected) <= EVEN * abs(expected)
