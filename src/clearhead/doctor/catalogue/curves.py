"""What the log of a training shows by itself, in sentences. Imports no torch."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

Record = Mapping[str, Any]
FALLEN = 0.05  # share of the first loss; less does not count as a fall
JUMP = 1.5  # times the mean of the losses before
RISEN = 0.02  # share of the lowest validation loss


def signs(records: Iterable[Record], *, vocab_size: int | None = None) -> tuple[str, ...]:
    """What the losses, learning rates and validations of a training show.

    Args:
        records: in order; {"kind": "step", "step", "loss", "learning_rate", "skipped"} and
            {"kind": "evaluation", "step", "loss"}, losses in nats per token, None where they were not finite.
        vocab_size: V, for the loss of a uniform prediction.
    """
    lines = list(records)
    steps = [record for record in lines if record.get("kind") == "step"]
    evaluations = [record for record in lines if record.get("kind") == "evaluation" and _is_number(record["loss"])]
    return (*_of_steps(steps, vocab_size), *_of_evaluations(steps, evaluations))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _of_steps(steps: Sequence[Record], vocab_size: int | None) -> Iterator[str]:
    lost = [record["step"] for record in steps if not _is_number(record["loss"]) or record.get("skipped")]
    if lost:
        yield f"{len(lost)} of {len(steps)} steps had no finite loss or gradient, the first was step {lost[0]}"
    still = [record["step"] for record in steps if record.get("learning_rate") == 0]
    if still:
        yield f"the learning rate was 0 in {len(still)} of {len(steps)} steps, first in step {still[0]}"
    losses = [(record["step"], record["loss"]) for record in steps if _is_number(record["loss"])]
    if len(losses) < 2:
        return
    part = max(1, len(losses) // 10)
    first, last = (fmean(loss for _, loss in some) for some in (losses[:part], losses[-part:]))
    uniform = f"; a uniform prediction has {math.log(vocab_size):.2f}" if vocab_size else ""
    went = f"stayed near {last:.2f}"
    if abs(last - first) > FALLEN * first:
        went = f"{'fell' if last < first else 'rose'} from {first:.2f} to {last:.2f}"
    yield f"the loss {went} in {losses[-1][0]} steps{uniform}"
    for number in range(5, len(losses)):
        before, (step, loss) = fmean(loss for _, loss in losses[number - 5 : number]), losses[number]
        if loss > JUMP * before + 0.1:
            yield f"it jumped at step {step}, from {before:.2f} to {loss:.2f}"
            return


def _of_evaluations(steps: Sequence[Record], evaluations: Sequence[Record]) -> Iterator[str]:
    if not evaluations:
        return
    best, last = min(evaluations, key=lambda record: record["loss"]), evaluations[-1]
    if last["loss"] > (1 + RISEN) * best["loss"]:
        yield (
            f"validation was best at step {best['step']} with {best['loss']:.2f} and has risen to {last['loss']:.2f}: "
            "the model memorizes the training text"
        )
    before = [r["loss"] for r in steps if r["step"] <= last["step"] and _is_number(r["loss"])][-20:]
    if before:
        yield f"validation is {last['loss']:.2f} where training is {fmean(before):.2f}"
