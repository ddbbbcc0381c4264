"""Whether the optimizers move the model, all of it, and nothing else, and by options that can be meant."""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
from torch import nn

from clearhead.doctor.calling.settings import setting
from clearhead.doctor.checks.base import Finding, Skipped, Status, finding
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.tensors import is_same
from clearhead.doctor.training.checks import first_of, training_check
from clearhead.doctor.training.events import Created, Forward, OptimizerStep
from clearhead.doctor.training.gradient_log import norm, sample
from clearhead.doctor.training.recording import Recording

STRONG = 0.05  # a weight decay that visibly shrinks gains and biases; torch's own default is 0.01
DECOUPLED = 0.01  # a decay of this size is meant for AdamW; as a part of Adam's gradient it does something else
SMALLEST = 2.0**-24  # positive number of float16
COUPLED = ("Adam", "NAdam", "RAdam", "Adamax")


@training_check("O01", "coverage", order=40, covers=("O02", "O16", "O17", "O14", "E01"), needs=("graph",))
def coverage(recording: Recording) -> list[Finding]:
    """What has gradients is in an optimizer, what is in one is the model's, and nothing frozen moves."""
    if not recording.steps:
        raise Skipped("no step was made")
    lost = first_of(_recreated(recording), _missing(recording), _left_out(recording))
    return [*lost, *_frozen(recording), *first_of(_twice(recording)), *first_of(_untied(recording))]


def _recreated(recording: Recording) -> Iterator[Finding]:
    """An optimizer that replaces one that has stepped starts without its moments."""
    for event in recording.events(Created):
        for step in recording.around(event)[0] if event.optimizer in recording.by_optimizer else ():
            if not isinstance(step, OptimizerStep) or not step.has_state or step.name != event.name:
                continue
            if event.parameters == {*step.parameters}:
                witness = (
                    f"a new {event.name} takes over all {len(event.parameters)} parameters after step {step.number}, "
                    "and the state of the one before is lost"
                )
                yield finding("O14", witness, where=event.where)


def _missing(recording: Recording) -> Iterator[Finding]:
    reached = [p for p in recording.parameters if p.requires_grad and recording.was_reached(p)]
    outside = [parameter for parameter in reached if not recording.is_held(parameter)]
    missing = [p for p in outside if is_same(recording.account(p).first, sample(p))]
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


def _strangers(recording: Recording) -> list[nn.Parameter]:
    """Parameters that an optimizer holds and nothing that ran does."""
    ran = {parameter for forward in recording.events(Forward) for parameter in forward.module.parameters()}
    unused = recording.stepped.difference(ran, recording.names)
    return [parameter for parameter in unused if parameter.requires_grad and not recording.was_reached(parameter)]


def _left_out(recording: Recording) -> Iterator[Finding]:
    """A module beside what is trained of which no optimizer holds anything: frozen on purpose, or forgotten."""
    modules = [forward.module for backward in recording.backwards for forward in backward.forwards]
    for module in modules if recording.roots else ():
        reached = [parameter for parameter in module.parameters() if recording.was_reached(parameter)]
        outside = [p for p in reached if p.requires_grad and p not in recording.names]
        if outside and len(outside) == len(reached) and not any(map(recording.is_held, outside)):
            name = type(module).__name__
            witness = f"backward gives {len(outside)} parameters of {name} a gradient, and no optimizer holds any"
            yield finding("O01", witness, value=len(outside), where=place_of_module("", module), status="warn")


def _frozen(recording: Recording) -> Iterator[Finding]:
    moves = [(parameter, move) for step in recording.steps for parameter, move in step.moves.items()]
    frozen = list(dict.fromkeys(parameter for parameter, move in moves if move.change and not move.learns))
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
            yield finding("O16", witness, where=recording.where(parameter))


def _untied(recording: Recording) -> Iterator[Finding]:
    """An embedding and a head that started with equal numbers, and diverged."""
    modules = [module for root in recording.roots for module in root.modules()]
    tables, heads = (
        [parameter for module in modules if isinstance(module, kind) for parameter in module.parameters(recurse=False)]
        for kind in (nn.Embedding, nn.Linear)
    )
    tied = any(setting(root, "tie_word_embeddings") is True for root in recording.roots)
    for table, head in product(tables, heads):
        first = recording.account(table).first
        began_equal = is_same(first, recording.account(head).first) and bool((first != first[0]).any())
        if not began_equal or table.shape != head.shape:
            continue
        difference = norm(sample(table) - sample(head))
        if difference:
            status: Status = "fail" if tied else "warn"
            witness = (
                f"{recording.name(table)} and {recording.name(head)} were equal to the last bit, and after "
                f"{len(recording.steps)} steps they differ by {difference:.3g}"
            )
            yield finding("E01", witness, where=recording.where(head), status=status)


@training_check("O03", "settings", order=90, covers=("O05", "O06"))
def settings(recording: Recording) -> list[Finding]:
    """Decay and moments are as they usually are."""
    optimizers = {id(owner): owner for owner in [*recording.optimizers, *recording.event_log.kept]}
    stepped = [owner for key, owner in optimizers.items() if key in recording.by_optimizer]
    groups = [(owner, group) for owner in stepped for group in getattr(owner, "param_groups", ()) if group["params"]]
    if not groups:
        raise Skipped("no optimizer of torch stepped")
    findings: dict[str, Finding] = {}
    for optimizer, group in groups:
        for fault in _of_group(recording, type(optimizer).__name__, group):
            findings.setdefault(fault.id, fault)
    return list(findings.values())


def _of_group(recording: Recording, name: str, group: Mapping[str, Any]) -> Iterator[Finding]:
    decay, eps, betas = float(group.get("weight_decay") or 0), float(group.get("eps") or 0), group.get("betas")
    where = recording.where(group["params"][0])
    vectors = [p for p in group["params"] if p.dim() < 2 and p.requires_grad and p in recording.names]
    if decay >= STRONG and vectors:
        witness = f"{recording.listed(vectors)} decay by {decay:g} like the matrices"
        yield finding("O03", witness, value=decay, threshold=STRONG, where=recording.where(vectors[0]))
    if decay >= DECOUPLED and name in COUPLED and not group.get("decoupled_weight_decay", False):
        witness = f"weight_decay={decay:g} of {name} is added to the gradient, and divided by its size again"
        yield finding("O05", witness, value=decay, threshold=DECOUPLED, where=where)
    if betas is not None and len(betas) > 1 and float(betas[0]) > float(betas[1]):
        first, second = map(float, betas[:2])
        witness = f"betas are {first:g}, {second:g}: the mean of squares forgets sooner than the mean"
        yield finding("O06", witness, value=first, threshold=second, where=where)
    half = [parameter for parameter in group["params"] if parameter.dtype == torch.float16]
    if half and 0 < eps < SMALLEST / 2:
        witness = f"eps={eps:g} is 0 in float16, whose smallest number is {SMALLEST:.1e}"
        yield finding("O06", witness, value=eps, threshold=SMALLEST, where=recording.where(half[0]))
