"""Whether batches differ, and whether forward leaves them unchanged."""

from collections.abc import Iterator

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.probes.tensors import are_same
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import first_of, training_check
from clearhead.doctor.training.events import Backward
from clearhead.doctor.training.recording import Recording


@training_check("D17", "batches", order=100, covers=("D17", "D18"), holds="batches differ, and are not written to")
def batches(recording: Recording) -> list[Finding]:
    """Every step gets another batch, and forward leaves it unchanged."""
    if not recording.learned:
        raise Skipped("no forward of the model was followed by a backward")
    return [*first_of(_changed(recording)), *_repeated(recording)]


def _changed(recording: Recording) -> Iterator[Finding]:
    for forward in recording.learned:
        if forward.changed_inputs:
            witness = f"{type(forward.module).__name__} writes to an input tensor before its forward returns"
            yield finding("D18", witness, where=forward.where, status="warn")


def _repeated(recording: Recording) -> Iterator[Finding]:
    if any(step.with_closure for step in recording.steps):
        return  # such methods need all of a small data set in each step
    learned = {id(forward) for forward in recording.learned}
    steps = []
    for events, _ in recording.spans:
        forwards = [forward for event in events if isinstance(event, Backward) for forward in event.forwards]
        steps.append([forward.batch for forward in forwards if id(forward) in learned and forward.batch])
    steps = [batches for batches in steps if batches]
    if len(steps) > 1 and all(
        len(steps[0]) == len(other) and all(map(are_same, steps[0], other)) for other in steps[1:]
    ):
        witness = f"all {len(steps)} steps get the same batch, to the last token"
        where = recording.learned[-1].where
        yield finding("D17", witness, value=len(steps), threshold=1, where=where, status="warn")
