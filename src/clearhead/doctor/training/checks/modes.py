"""Training in training mode, validation in evaluation mode."""

from collections.abc import Iterator

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.probes.tracing import home_of
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.training.checks.base import first_of, training_check
from clearhead.doctor.training.events import Forward, OptimizerStep
from clearhead.doctor.training.recording import Recording
from clearhead.doctor.training.trials import CLOSE, difference, run, trying


@training_check("T06", "modes", order=80, covers=("T06", "V02"), holds="dropout drops in training, and only there")
def modes(recording: Recording) -> list[Finding]:
    """Dropout drops while the model learns, and at no other time."""
    if not recording.learned:
        raise Skipped("no forward of the model was followed by a backward")
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
    learned = {id(forward.module) for forward in recording.learned}
    stepped = False
    for event in recording.timeline:
        stepped = stepped or isinstance(event, OptimizerStep)
        if not stepped or not isinstance(event, Forward) or event.with_gradient or id(event.module) not in learned:
            continue
        if event.training and any(event.dropouts.values()):
            witness = (
                "a forward without gradients runs in train(): dropout drops, and the same batch gives other results"
            )
            yield finding("V02", witness, where=event.where, status="warn")
