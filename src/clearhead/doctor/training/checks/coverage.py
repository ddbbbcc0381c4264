"""Whether the optimizers move the model, all of it, and nothing else."""

from collections.abc import Iterator

from torch import nn

from clearhead.doctor.checks.base import Skipped, finding
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.report.findings import Finding, Status
from clearhead.doctor.training.checks.base import training_check
from clearhead.doctor.training.events import Created, OptimizerStep
from clearhead.doctor.training.readings import is_same, norm, sample
from clearhead.doctor.training.recording import Recording, at


@training_check(
    "O01",
    "coverage",
    order=40,
    covers=("O01", "O02", "O16", "O17", "O14", "E01"),
    holds="what has gradients is in an optimizer, what is in one is the model's, and nothing frozen moves",
    needs=("graph",),
)
def coverage(recording: Recording) -> list[Finding]:
    """What has gradients is in an optimizer, what is in one belongs to what runs, and is there once."""
    if not recording.steps:
        raise Skipped("no step was made")
    findings = [*_remade(recording)] or [*_missing(recording)]
    findings = findings or [*_left_out(recording)]
    return [*findings, *_frozen(recording), *_twice(recording), *_untied(recording)]


def _missing(recording: Recording) -> Iterator[Finding]:
    missing = []
    for parameter in recording.parameters:
        account = recording.account(parameter)
        if account is None or not account.reached or not parameter.requires_grad or recording.is_held(parameter):
            continue
        if is_same(account.first, sample(parameter)):
            missing.append(parameter)
    strangers = _strangers(recording)
    if missing:
        account = recording.account(missing[0])
        assert account is not None
        stayed = f"backward gives {recording.listed(missing)} a gradient, no optimizer holds them, and they stay"
        shapes = {parameter.shape for parameter in missing}
        replaced = [parameter for parameter in strangers if parameter.shape in shapes]
        where = recording.where(missing[0])
        if replaced:
            witness = (
                f"{stayed}; the optimizer holds {len(replaced)} tensors of their shapes that nothing uses and no "
                "gradient reaches"
            )
            yield finding((("O02", 0.8), ("O01", 0.2)), witness, value=len(replaced), where=where)
        else:
            yield finding((("O01", 0.8), ("O02", 0.2)), stayed, value=len(missing), where=where)
    elif strangers:
        step = next(s for s in recording.steps if any(strangers[0] is parameter for parameter in s.parameters))
        witness = (
            f"{step.name} holds {len(strangers)} tensors, such as {recording.name(strangers[0])}, that belong to "
            "nothing that ran, and no gradient reaches them"
        )
        yield finding("O02", witness, value=len(strangers), where=at(step.location, "step"), status="warn")


def _left_out(recording: Recording) -> Iterator[Finding]:
    """A module beside what is trained that learns nothing of the gradients it is given: frozen so, or forgotten."""
    names = recording.names
    modules = [forward.module for backward in recording.backwards for forward in backward.forwards]
    for module in modules if recording.roots else ():
        reached = [p for p in module.parameters() if (a := recording.account(p)) is not None and a.reached]
        strange = [parameter for parameter in reached if parameter.requires_grad and id(parameter) not in names]
        if strange and len(strange) == len(reached) and not any(recording.is_held(parameter) for parameter in strange):
            name = type(module).__name__
            witness = (
                f"backward gives {len(strange)} parameters of {name} a gradient, and no optimizer holds one of them"
            )
            yield finding("O01", witness, value=len(strange), where=place_of_module("", module), status="warn")
            return


def _strangers(recording: Recording) -> list[nn.Parameter]:
    ran = {id(parameter) for forward in recording.forwards for parameter in forward.module.parameters()}
    strangers = {}
    for step in recording.steps:
        for parameter in step.parameters:
            account = recording.account(parameter)
            inside = id(parameter) in ran or id(parameter) in recording.names
            if not inside and parameter.requires_grad and (account is None or not account.reached):
                strangers[id(parameter)] = parameter
    return list(strangers.values())


def _remade(recording: Recording) -> Iterator[Finding]:
    """An optimizer that takes the place of one that has stepped forgets its moments."""
    before: list[OptimizerStep] = []
    for event in recording.timeline:
        if isinstance(event, OptimizerStep):
            before.append(event)
        elif isinstance(event, Created):
            for step in before:
                same = {id(parameter) for parameter in step.parameters} == event.parameters
                if same and step.remembers and step.name == event.name and recording.steps_of(event.optimizer):
                    witness = (
                        f"a new {event.name} takes over all {len(event.parameters)} parameters after "
                        f"step {recording.number(step)}, and what the one before remembers of them is gone"
                    )
                    yield finding("O14", witness, where=at(event.location, "__init__"))
                    return


def _frozen(recording: Recording) -> Iterator[Finding]:
    moved = {}
    for step in recording.steps:
        for parameter in step.parameters:
            move = step.moves.get(id(parameter))
            if move is not None and not move.learns and move.change > 0:
                moved[id(parameter)] = parameter
    if moved:
        first = next(iter(moved.values()))
        witness = f"requires_grad of {recording.listed(moved.values())} is False, and the step moves them"
        yield finding("O17", witness, value=len(moved), where=recording.where(first))


def _twice(recording: Recording) -> Iterator[Finding]:
    """Two parameters over one memory."""
    known: dict[tuple[int, int], nn.Parameter] = {}
    for step in recording.steps:
        for parameter in step.parameters:
            if parameter.layout is not None and not parameter.is_sparse and parameter.numel() > 1:
                other = known.setdefault((parameter.data_ptr(), parameter.numel()), parameter)
                if other is not parameter:
                    witness = (
                        f"{recording.name(other)} and {recording.name(parameter)} are two parameters over one memory: "
                        "each step moves it twice, each time by a part of its gradient"
                    )
                    yield finding("O16", witness, where=recording.where(parameter), status="warn")
                    return


def _untied(recording: Recording) -> Iterator[Finding]:
    """A table and a head that began with equal numbers, and went different ways."""
    modules = [module for root in recording.roots for module in root.modules()]
    tables = [m.weight for m in modules if isinstance(m, nn.Embedding)]
    heads = [m.weight for m in modules if isinstance(m, nn.Linear)]
    tied = any(getattr(getattr(root, "config", None), "tie_word_embeddings", False) is True for root in recording.roots)
    for table in tables:
        for head in heads:
            first, second = recording.account(table), recording.account(head)
            if table is head or table.shape != head.shape or first is None or second is None:
                continue
            began_equal = is_same(first.first, second.first) and bool((first.first != first.first[0]).any())
            now, then = sample(table), sample(head)
            if began_equal and not is_same(now, then):
                status: Status = "fail" if tied else "warn"
                witness = (
                    f"{recording.name(table)} and {recording.name(head)} were equal to the last bit, and after "
                    f"{len(recording.steps)} steps they differ by {norm(now - then):.3g}"
                )
                yield finding("E01", witness, where=recording.where(head), status=status)
                return
