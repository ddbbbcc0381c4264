"""Whether batches differ and stay as they are, and in which mode the model reads them."""

from collections.abc import Iterator

from clearhead.doctor.checks.base import Finding, Skipped, Where, attempt, finding
from clearhead.doctor.probes.tensors import are_same
from clearhead.doctor.probes.tracing import home_of
from clearhead.doctor.training.checks import first_of, training_check
from clearhead.doctor.training.events import Backward, Forward
from clearhead.doctor.training.recording import Recording
from clearhead.doctor.training.trials import CLOSE, difference, run, trying

UNHEARD = "no forward of the model was followed by a backward"


@training_check("T06", "modes", order=80, covers=("V02",))
def modes(recording: Recording) -> list[Finding]:
    """Dropout drops in training, and only there."""
    if not recording.learned:
        raise Skipped(UNHEARD)
    return [*_asleep(recording), *first_of(_partly_asleep(recording)), *first_of(_awake(recording))]


def _asleep(recording: Recording) -> Iterator[Finding]:
    number = next((n for n, forward in enumerate(recording.learned, 1) if not forward.training), None)
    if number is not None and _is_random(recording, recording.learned[number - 1]):
        before = ", the one before in train()" if number > 1 and recording.learned[0].training else ""
        witness = (
            f"forward {number}, from which gradients are computed, runs in eval(){before}; in train() the same batch "
            "gives other outputs each time"
        )
        yield finding("T06", witness, where=recording.learned[number - 1].where)


def _is_random(recording: Recording, forward: Forward) -> bool:
    """Whether training mode draws random numbers; if it cannot be tried, whether there is dropout at all."""
    latest = next((known for known in reversed(recording.learned) if known.module is forward.module), forward)
    with attempt() as attempted, trying(recording, latest.module):
        first, second = (run(latest, training=True, seed=seed) for seed in (1, 2))
    if attempted.failed:  # its batch may not be kept
        return bool(forward.dropouts)
    return difference(first, second) > CLOSE


def _partly_asleep(recording: Recording) -> Iterator[Finding]:
    """A part in eval() inside a model in train(), whose weights learn."""
    for forward in (forward for forward in recording.learned if forward.training):
        for name in (name for name, drops in forward.dropouts.items() if not drops):
            part = forward.module.get_submodule(name.rpartition(".")[0])
            if any(map(recording.was_reached, part.parameters())):
                witness = f"the model is in train(), and dropout '{name}' in eval(), beside weights that learn"
                where = Where(name, type(forward.module.get_submodule(name)).__name__, *home_of(part))
                yield finding("T06", witness, where=where, status="warn")


def _awake(recording: Recording) -> Iterator[Finding]:
    learned = {forward.module for forward in recording.learned}
    for event in recording.around(recording.steps[0])[1] if recording.steps else ():
        if not isinstance(event, Forward) or event.with_gradient or event.module not in learned:
            continue
        if event.training and any(event.dropouts.values()):
            witness = (
                "a forward without gradients runs in train(): dropout drops, and the same batch gives other results"
            )
            yield finding("V02", witness, where=event.where)


@training_check("D17", "batches", order=100, covers=("D18",))
def batches(recording: Recording) -> list[Finding]:
    """Batches differ, and are not written to."""
    if not recording.learned:
        raise Skipped(UNHEARD)
    return [*first_of(_changed(recording)), *_repeated(recording)]


def _changed(recording: Recording) -> Iterator[Finding]:
    for forward in recording.learned:
        if forward.changed_inputs:
            witness = f"{type(forward.module).__name__} writes to an input tensor before its forward returns"
            yield finding("D18", witness, where=forward.where)


def _repeated(recording: Recording) -> Iterator[Finding]:
    if any(step.with_closure for step in recording.steps):
        return  # such methods need all of a small data set in each step
    steps = []
    for events, _ in recording.spans:
        forwards = [forward for event in events if isinstance(event, Backward) for forward in event.forwards]
        steps.append([tensor for forward in forwards if forward in recording.learned for tensor in forward.batch])
    steps = list(filter(None, steps))
    if len(steps) > 1 and all(are_same(steps[0], other) for other in steps[1:]):
        witness = f"all {len(steps)} steps get the same batch, to the last token"
        where = recording.learned[-1].where
        yield finding("D17", witness, value=len(steps), threshold=1, where=where)
