"""Training in training mode, validation in evaluation mode."""

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.probes.tracing import home_of
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding, Where
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import Forward, OptimizerStep
from clearhead.doctor.training.recording import Recording, at
from clearhead.doctor.training.trials import CLOSE, difference, run, trying


@training_check("T06", "modes", order=80, covers=("T06", "V02"), holds="dropout drops in training, and only there")
def modes(recording: Recording) -> list[Finding]:
    """Dropout drops while the model learns, and at no other time."""
    if not recording.learned:
        raise Skipped("no forward of the model was followed by a backward")
    return [*_asleep(recording), *_partly_asleep(recording), *_awake(recording)]


def _asleep(recording: Recording) -> list[Finding]:
    forward = next((forward for forward in recording.learned if not forward.training), None)
    if forward is None:
        return []
    random = _is_random(recording, forward)
    if not (random or (random is None and forward.dropouts)):
        return []
    number = 1 + next(n for n, known in enumerate(recording.learned) if known is forward)
    before = ", the one before in train()" if number > 1 and recording.learned[0].training else ""
    witness = (
        f"forward {number}, from which gradients are computed, runs in eval(){before}; in train() the same batch gives "
        "other outputs each time"
    )
    return [finding("T06", witness, where=at(forward.location, "forward"))]


def _is_random(recording: Recording, forward: Forward) -> bool | None:
    """Whether training mode draws random numbers; None if the batch is gone."""
    forward = next((known for known in reversed(recording.learned) if known.module is forward.module), forward)
    with attempt() as attempted, trying(recording, forward.module):
        first, second = (run(forward, training=True, seed=seed) for seed in (1, 2))
    if attempted.failed:  # its batch may be gone: then it is judged by whether it has dropout at all
        return None
    return difference(first, second) > CLOSE


def _partly_asleep(recording: Recording) -> list[Finding]:
    """A part in eval() inside a model in train(), whose weights learn."""
    for forward in recording.learned:
        dead = [name for name, drops in forward.dropouts.items() if not drops]
        if not forward.training or not dead:
            continue
        for name in dead:
            part = forward.module.get_submodule(name.rpartition(".")[0])
            accounts = [recording.account(parameter) for parameter in part.parameters()]
            if any(account is not None and account.reached for account in accounts):
                witness = f"the model is in train(), and dropout '{name}' in eval(), beside weights that learn"
                where = Where(name, type(forward.module.get_submodule(name)).__name__, *home_of(part))
                return [finding("T06", witness, where=where, status="warn")]
    return []


def _awake(recording: Recording) -> list[Finding]:
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
            return [finding("V02", witness, where=at(event.location, "forward"), status="warn")]
    return []
