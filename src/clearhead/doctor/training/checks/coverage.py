"""Whether the optimizers move the model, all of it, and nothing else."""

from collections.abc import Iterator

from torch import nn

from clearhead.doctor.calling.settings import setting
from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.tensors import is_same
from clearhead.doctor.report.findings import Finding, Status
from clearhead.doctor.training.checks.base import first_of, training_check
from clearhead.doctor.training.events import Created, Forward, OptimizerStep
from clearhead.doctor.training.gradient_log import norm, sample
from clearhead.doctor.training.recording import Recording


@training_check(
    "O01",
    "coverage",
    order=40,
    covers=("O01", "O02", "O16", "O17", "O14", "E01"),
    holds="what has gradients is in an optimizer, what is in one is the model's, and nothing frozen moves",
    needs=("graph",),
)
def coverage(recording: Recording) -> list[Finding]:
    """Parameters with gradients are in an optimizer, once, and an optimizer holds only parameters of what runs."""
    if not recording.steps:
        raise Skipped("no step was made")
    lost = first_of(_recreated(recording), _missing(recording), _left_out(recording))
    return [*lost, *_frozen(recording), *first_of(_twice(recording)), *first_of(_untied(recording))]


def _missing(recording: Recording) -> Iterator[Finding]:
    missing = [
        account.parameter
        for account in map(recording.account, recording.parameters)
        if account is not None and account.reached and account.parameter.requires_grad
        if not recording.is_held(account.parameter) and is_same(account.first, sample(account.parameter))
    ]
    if missing:
        witness = f"backward gives {recording.listed(missing)} a gradient, no optimizer holds them, and they stay"
        shapes = {parameter.shape for parameter in missing}
        replaced = [parameter for parameter in _strangers(recording) if parameter.shape in shapes]
        if replaced:
            witness += (
                f"; the optimizer holds {len(replaced)} tensors of their shapes that nothing uses and no gradient "
                "reaches"
            )
        causes = (("O02", 0.8), ("O01", 0.2)) if replaced else (("O01", 0.8), ("O02", 0.2))
        yield finding(causes, witness, value=len(replaced or missing), where=recording.where(missing[0]))


def _left_out(recording: Recording) -> Iterator[Finding]:
    """A module beside what is trained of which no optimizer holds anything: frozen on purpose, or forgotten."""
    modules = [forward.module for backward in recording.backwards for forward in backward.forwards]
    for module in modules if recording.roots else ():
        reached = [parameter for parameter in module.parameters() if recording.was_reached(parameter)]
        outside = [p for p in reached if p.requires_grad and id(p) not in recording.names]
        if outside and len(outside) == len(reached) and not any(map(recording.is_held, outside)):
            name = type(module).__name__
            witness = f"backward gives {len(outside)} parameters of {name} a gradient, and no optimizer holds any"
            yield finding("O01", witness, value=len(outside), where=place_of_module("", module), status="warn")


def _strangers(recording: Recording) -> list[nn.Parameter]:
    """Parameters that an optimizer holds and nothing that ran does."""
    forwards = recording.events(Forward)
    inside = {id(parameter) for forward in forwards for parameter in forward.module.parameters()} | {*recording.names}
    held = {id(parameter): parameter for step in recording.steps for parameter in step.parameters}
    return [p for key, p in held.items() if key not in inside and p.requires_grad and not recording.was_reached(p)]


def _recreated(recording: Recording) -> Iterator[Finding]:
    """An optimizer that replaces one that has stepped starts without its moments."""
    for event in recording.events(Created):
        for step in recording.around(event)[0] if event.optimizer in recording.by_optimizer else ():
            if not isinstance(step, OptimizerStep) or not step.has_state or step.name != event.name:
                continue
            if {id(parameter) for parameter in step.parameters} == event.parameters:
                witness = (
                    f"a new {event.name} takes over all {len(event.parameters)} parameters after step {step.number}, "
                    "and the state of the one before is lost"
                )
                yield finding("O14", witness, where=event.where)


def _frozen(recording: Recording) -> Iterator[Finding]:
    learns_not = [
        parameter
        for step in recording.steps
        for parameter in step.parameters
        if id(parameter) in step.moves and not step.moves[id(parameter)].learns and step.moves[id(parameter)].change
    ]
    frozen = list(dict.fromkeys(learns_not))
    if frozen:
        witness = f"requires_grad of {recording.listed(frozen)} is False, and the step moves them"
        yield finding("O17", witness, value=len(frozen), where=recording.where(frozen[0]))


def _twice(recording: Recording) -> Iterator[Finding]:
    """Two parameters in the same memory."""
    known: dict[tuple[int, int], nn.Parameter] = {}
    for parameter in (parameter for step in recording.steps for parameter in step.parameters):
        if parameter.is_sparse or parameter.numel() < 2:
            continue
        other = known.setdefault((parameter.data_ptr(), parameter.numel()), parameter)
        if other is not parameter:
            witness = (
                f"{recording.name(other)} and {recording.name(parameter)} are two parameters in the same memory: each "
                "step moves it twice, each time by a part of its gradient"
            )
            yield finding("O16", witness, where=recording.where(parameter), status="warn")


def _untied(recording: Recording) -> Iterator[Finding]:
    """An embedding and a head that started with equal numbers, and diverged."""
    modules = [module for root in recording.roots for module in root.modules()]
    tables = [m.weight for m in modules if isinstance(m, nn.Embedding)]
    heads = [m.weight for m in modules if isinstance(m, nn.Linear)]
    tied = any(setting(root, "tie_word_embeddings") is True for root in recording.roots)
    for table, head in ((table, head) for table in tables for head in heads):
        first, second = recording.account(table), recording.account(head)
        if table is head or table.shape != head.shape or first is None or second is None:
            continue
        began_equal = is_same(first.first, second.first) and bool((first.first != first.first[0]).any())
        difference = norm(sample(table) - sample(head))
        if began_equal and difference:
            status: Status = "fail" if tied else "warn"
            witness = (
                f"{recording.name(table)} and {recording.name(head)} were equal to the last bit, and after "
                f"{len(recording.steps)} steps they differ by {difference:.3g}"
            )
            yield finding("E01", witness, where=recording.where(head), status=status)
