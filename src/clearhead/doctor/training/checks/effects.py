"""Parameters in an optimizer that no gradient ever reached: cut off from the loss, or without any effect on it."""

from collections.abc import Sequence

from torch import nn

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.checks.parts.gradients import SOMETIMES
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import Forward
from clearhead.doctor.training.recording import Recording
from clearhead.doctor.training.trials import has_effect, has_gradient, is_threshold, trying

TRIED = 24  # parameters whose effect is measured


@training_check(
    "A13",
    "effects",
    order=130,
    covers=("I06", "A13"),
    holds="what is to be trained and has an effect has a gradient",
    needs=("graph", "coverage"),
)
def effects(recording: Recording) -> list[Finding]:
    """A parameter that is to be trained has a gradient if it has an effect."""
    if not recording.steps or not recording.learned:
        raise Skipped("no step was made")
    cut: list[nn.Parameter] = []
    idle: list[nn.Parameter] = []
    for forward in {id(f.module): f for f in recording.learned}.values():
        bare = [parameter for parameter in forward.module.parameters() if _is_bare(recording, parameter)]
        if bare:
            more_cut, more_idle = _judged(recording, forward, bare[:TRIED])
            cut, idle = cut + more_cut, idle + more_idle
    if cut:
        witness = f"other numbers in {recording.listed(cut)} change what the loss reads, and no gradient reaches them"
        return [finding("I06", witness, value=0, where=recording.where(cut[0]))]
    if idle:
        witness = f"other numbers in {recording.listed(idle)} change nothing that the loss reads"
        return [finding("A13", witness, value=0, where=recording.where(idle[0]), status="warn")]
    return []


def _is_bare(recording: Recording, parameter: nn.Parameter) -> bool:
    account = recording.account(parameter)
    bare = account is not None and not account.present and parameter.requires_grad
    return bare and recording.is_held(parameter)


def _judged(
    recording: Recording, forward: Forward, bare: Sequence[nn.Parameter]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those that are cut off, and those that do nothing. A part that is only left out at times is neither."""
    cut, idle = [], []
    training = forward.training
    with attempt() as attempted, trying(recording, forward.module):
        for parameter in bare:
            if has_effect(forward, parameter, training=training):
                is_balance = parameter.dim() < 2 and is_threshold(forward, parameter, training=training)
                if not is_balance and not has_gradient(forward, parameter, training=training):
                    cut.append(parameter)
            elif not SOMETIMES.search(recording.name(parameter)) and not has_effect(forward, parameter, training=False):
                idle.append(parameter)
    if attempted.failed:
        raise Skipped(f"the batch could not be run again ({attempted.kind})")
    return cut, idle
