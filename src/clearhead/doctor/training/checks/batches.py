"""Whether batches differ, and come out of the model as they went in."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import Backward, OptimizerStep
from clearhead.doctor.training.readings import is_same
from clearhead.doctor.training.recording import Recording, at

Batch = Sequence[Tensor]


@training_check("D17", "batches", order=100, covers=("D17", "D18"), holds="batches differ, and are not written to")
def batches(recording: Recording) -> list[Finding]:
    """Every step sees another batch, and forward leaves it as it is."""
    if not recording.learned:
        raise Skipped("no forward of the model was followed by a backward")
    return [*_changed(recording), *_repeated(recording)]


def _changed(recording: Recording) -> Iterator[Finding]:
    forward = next((forward for forward in recording.learned if forward.changed_inputs), None)
    if forward is not None:
        name = type(forward.module).__name__
        witness = f"a tensor that {name} was given is written to before its forward returns"
        yield finding("D18", witness, where=at(forward.location, "forward"), status="warn")


def _repeated(recording: Recording) -> Iterator[Finding]:
    earlier: list[list[Batch]] = []
    current: list[Batch] = []
    learned = {id(forward) for forward in recording.learned}
    for event in recording.timeline:
        if isinstance(event, OptimizerStep) and event.with_closure:
            return  # the whole of a small set at each step, as such methods need
        if isinstance(event, Backward):
            current += [forward.batch for forward in event.forwards if id(forward) in learned and forward.batch]
        if isinstance(event, OptimizerStep) and current:
            earlier.append(current)
            current = []
    if len(earlier) > 1 and all(_are_same(earlier[0], other) for other in earlier[1:]):
        forward = recording.learned[-1]
        witness = f"all {len(earlier)} steps are given the same batch, to the last token"
        yield finding(
            "D17", witness, value=len(earlier), threshold=1, where=at(forward.location, "forward"), status="warn"
        )


def _are_same(part: Sequence[Batch], other: Sequence[Batch]) -> bool:
    if len(part) != len(other):
        return False
    return all(
        len(left) == len(right) and all(is_same(a, b) for a, b in zip(left, right, strict=True))
        for left, right in zip(part, other, strict=True)
    )
