"""The residual stream: where each sublayer takes it from, what is dropped from it, and whether a norm ends it."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import permutations

from torch import Tensor, nn

from clearhead.doctor.checks.base import Finding, Skipped, Subject, Where, finding, model_check
from clearhead.doctor.probes.flow import ADD, made_by, read_by
from clearhead.doctor.probes.locations import around, is_own, layer_of, owner_of, place_of_module
from clearhead.doctor.probes.norms import is_leaf_norm
from clearhead.doctor.probes.products import LINEAR, NORMS, PRODUCTS
from clearhead.doctor.probes.stream import Addition, addends
from clearhead.doctor.probes.tensors import relative_change
from clearhead.doctor.probes.tracing import ModuleCall, dropout_probability, home_of

PRE_NORM = re.compile(r"pre[-_ ]?(layer[-_ ]?)?norm", re.I)
FEW = 3  # additions of a single layer, as of one that pools
LEFT = 0.01  # of the largest number: what a norm's epsilon may change


@model_check(
    "N05",
    "streams",
    order=310,
    covers=("N03", "N04", "N10"),
    needs=("finite", "memory", "residuals"),
)
def streams(subject: Subject) -> list[Finding]:
    """The sublayers of a layer take their residual alike, no dropout lies on the stream, and a norm ends it."""
    streams, passed_by = subject.inside.streams, _passed_by(subject)
    steps, behind = streams[0]
    if len(steps) < 2 and len(streams) < 2 and not passed_by:
        raise Skipped("no residual stream was found")
    mixed = (_mixed(subject, steps) for steps, _ in streams)
    mistaken = passed_by or next(filter(None, mixed), [])
    return mistaken + _dropped(subject) + (_unnormalized(subject, steps, behind) if steps else [])


def _has_norm(calls: Sequence[ModuleCall], indices: Sequence[int]) -> bool:
    return any(_is_norm(calls[index]) for index in indices)


def _is_norm(call: ModuleCall) -> bool:
    return call.name in NORMS or is_leaf_norm(call.module)


def _makes_even(call: ModuleCall) -> bool:
    """Whether the vectors that it returns are equally long, and those that it reads are not."""
    lengths = [
        next((t.norm(dim=-1) for t in tensors if t.dim() > 2 and t.numel()), None)
        for tensors in (call.inputs, call.outputs)
    ]
    spreads = [0.0 if n is None else float((n.max() - n.min()) / n.max().clamp_min(1e-12)) for n in lengths]
    return lengths[1] is not None and spreads[1] < LEFT < spreads[0]


def _passed_by(subject: Subject) -> list[Finding]:
    """A sublayer is added to the norm of a sum, and reads the branch in this sum alone: nothing leads around it."""
    flow, calls, residuals = subject.inside.flow, subject.inside.calls, subject.inside.residuals
    sums = {id(calls[index]) for index in residuals}
    for index, call in enumerate(calls):
        for carried, branch in permutations(addends(call), 2):
            steps = flow.way_back(carried, index, lambda before: id(before) in sums)
            if not _has_norm(calls, steps[:-1]) or any(calls[at].name in LINEAR | PRODUCTS for at in steps[:-1]):
                continue
            skip, summed = residuals[steps[-1]], calls[steps[-1]]
            if any(flow.comes_from(branch, index, output) for output in made_by(summed)):
                continue
            alone = next(part for part in addends(summed) if part is not skip)
            maker = flow.maker(alone, steps[-1])
            readers = [] if maker is None else flow.readers(maker)
            if sum(calls[reader].name in ADD and bool(flow.readers(reader)) for reader in readers) > 1:
                continue  # another stream carries it on, as in ResiDual
            if flow.comes_from(branch, index, alone) and not flow.comes_from(branch, index, skip, around=alone):
                witness = "what is added to the norm of a sum was made of the branch in that sum alone"
                against = "its own norm of the sum, to which it is only added"
                causes = (("N04", 0.9), ("N05", 0.1))
                return [finding(causes, witness, where=subject.place_of(call), against=against)]
    return []


def _mixed(subject: Subject, steps: Sequence[Addition]) -> list[Finding]:
    """One layer carries on the stream itself in one sublayer, its normalized form in another; else see `_replaced`."""
    calls = subject.inside.calls
    places = [subject.place_of(step.call) for step in steps]
    from_norm = [_carries_a_norm(subject, step) for step in steps]
    layers: dict[str, list[int]] = {}
    for number, where in enumerate(places):
        layer = layer_of(where.module)
        ends_layer_before = from_norm[number] and _norm_layers(subject, steps[number]) - {layer}
        if layer is not None and not steps[number].is_first and number > 0 and not ends_layer_before:
            layers.setdefault(layer, []).append(number)
    is_meant = False
    for layer, indices in list(layers.items())[1:]:  # before the first layer a norm of the embeddings may stand
        within = [index for index in indices if layer_of((places[index].module or "")[len(layer) + 1 :])]
        numbers = within or indices  # of a layer that holds layers, not what shrinks or widens their output
        if len({from_norm[number] for number in numbers}) < 2:
            continue
        number = next(number for number in numbers if from_norm[number])
        # this is a fault only beside a sublayer that reads the stream through a norm of its own
        reads_norm = any(not from_norm[other] and _reads_through_norm(steps[other], calls) for other in numbers)
        owners = [layer]  # the norm stands before all that the layer does, or the branch reads what it is added to
        if not _reads_through_norm(steps[number], calls):
            owners += [subject.place_of(calls[i]).module or "" for i in steps[number].between if _is_norm(calls[i])]
        unchanged = (owner for owner in owners if owner and _is_unchanged(subject, owner, steps, number))
        owner = next(unchanged, None) if reads_norm else None
        if owner is None:  # layers of several halves, which a norm ends, as in the Conformer
            is_meant = True
            continue
        witness = f"in {layer}, one sublayer is added to its input after a norm, and another to its input before it: "
        witness += f"the first stays the same if the input of {owner} is doubled"
        against, second = "the other sublayers of the layer", f"the input of {owner}, whose size is lost"
        return [finding((("N05", 0.9), ("N04", 0.1)), witness, where=places[number], against=against, second=second)]
    return [] if is_meant else _replaced(subject, steps)


def _replaced(subject: Subject, steps: Sequence[Addition]) -> list[Finding]:
    """Layers begin with a norm and carry on its output instead of their input: nothing leads around it.

    Where a norm ends each layer, as in post-norm, a layer carries on its input. Without a last norm both come to the
    same, so that it contradicts only what calls itself pre-norm.
    """
    places = [subject.place_of(step.call).module for step in steps]
    first = next((layer for path in places if (layer := layer_of(path)) is not None), None)
    for number in range(1, len(steps)):
        calls = [subject.inside.calls[index] for index in steps[number].between]
        if any(call.name in LINEAR for call in calls):
            continue  # a sublayer without a residual
        owners = (around(subject.place_of(call).module, places[number]) for call in calls if _is_norm(call))
        owner = next((path for path in owners if layer_of(path) not in (None, first)), None)  # it may hold embeddings
        if owner is None or around(owner, places[number - 1]) == owner:
            continue
        if _is_unchanged(subject, owner, steps, number):
            witness = f"{owner} adds to the output of a norm: what it adds to stays the same if its input is doubled"
            is_pre = is_own(subject.model, owner) and PRE_NORM.search(subject.hints.code)
            against = "its code, which calls it pre-norm" if is_pre else ""
            where = subject.place_of(steps[number].call)
            return [finding((("N05", 0.9), ("N04", 0.1)), witness, where=where, against=against)]
    return []


def _carries_a_norm(subject: Subject, step: Addition) -> bool:
    """Whether a step carries on the output of a norm in this layer or the one before; not of one between stacks."""
    return not step.is_first and bool(_norm_layers(subject, step))


def _norm_layers(subject: Subject, step: Addition) -> set[str]:
    """The layers whose norms lie between a step and the one before."""
    norms = (call for index in step.between if _is_norm(call := subject.inside.calls[index]))
    return {layer for norm in norms if (layer := layer_of(subject.place_of(norm).module)) is not None}


def _reads_through_norm(step: Addition, calls: Sequence[ModuleCall]) -> bool:
    """Whether a norm reads the very tensor that the branch is added to."""
    before = calls[: step.index]
    return any(_is_norm(call) and any(part is step.skip for part in call.options["args"]) for call in before)


def _is_unchanged(subject: Subject, layer: str, steps: Sequence[Addition], number: int) -> bool:
    """Whether an addition's skip stays the same if the layer's input is doubled: a norm took away its size."""
    doubled: list[str] = []

    def double(module: nn.Module, args: tuple[object, ...]) -> tuple[object, ...]:
        if not args or not isinstance(args[0], Tensor):
            return args
        doubled.append(layer)
        return (2 * args[0], *args[1:])

    with subject.model.get_submodule(layer).register_forward_pre_hook(double):
        again = [*subject.look_inside(subject.model).residuals.values()]
    order = [*subject.inside.residuals].index(steps[number].index)
    is_alike = bool(doubled) and len(again) == len(subject.inside.residuals)
    return is_alike and relative_change(steps[number].skip, again[order]) < LEFT


def _dropped(subject: Subject) -> list[Finding]:
    """In training, dropout between two additions drops numbers of the stream itself and not of a branch."""
    inside = subject.inside_training
    if not any(dropout_probability(call) for call in inside.calls):
        return []
    calls, flow, between = inside.calls, inside.flow, list[Finding]()
    attended = [(attention.index, tensor) for attention in inside.attentions for tensor in made_by(attention.call)]
    for step in (step for steps, _ in inside.streams for step in steps):
        for index in () if step.is_first else step.between:
            p = dropout_probability(calls[index])
            if not p or any(calls[other].name in LINEAR for other in step.between):  # it lies in a sublayer
                continue
            before = [tensor for number, tensor in attended if number < index]  # an encoder's may be among them
            if not any(flow.comes_from(part, index, tensor) for part in read_by(calls[index]) for tensor in before):
                continue  # embeddings, whatever was added to them
            witness = f"in training, each number of the stream is dropped with p={p:g} before the next sublayer"
            where, against = _caller_of(subject, calls[index]), "what a residual is for: to carry on what was there"
            if not (_ends_a_stack(subject, calls, step, index) or _begins_a_stack(subject, calls, index)):
                return [finding("N10", witness, value=p, where=where, against=against)]
            between.append(finding("N10", witness, value=p, where=where))
    return between[:1]


def _ends_a_stack(subject: Subject, calls: Sequence[ModuleCall], step: Addition, index: int) -> bool:
    """Whether a dropout stands outside the layers, as does a norm beside it that is called once, as T5 has them."""
    called = Counter(id(call.module) for call in calls if _is_norm(call))
    norms = [calls[other] for other in step.between if _is_norm(calls[other])]
    places = [subject.place_of(call).module for call in norms if called[id(call.module)] == 1]
    return layer_of(subject.place_of(calls[index]).module) is None and any(layer_of(path) is None for path in places)


def _begins_a_stack(subject: Subject, calls: Sequence[ModuleCall], index: int) -> bool:
    """Whether a dropout stands in front of the layers, not between them: of embeddings, where a stack feeds another."""
    where, inside = subject.place_of(calls[index]), subject.inside_training
    times = sum(bool(dropout_probability(call)) and subject.place_of(call) == where for call in calls)
    paths = [subject.place_of(attention.call).module or "" for attention in inside.attentions]
    within = [path for path in paths if path.startswith(f"{where.module}.")]
    layers = {layer_of(path) for path in within}  # rows that are given one at a time run all of them each time
    return layer_of(where.module) is None and times * len({*within}) < len(within) * len(layers)


def _caller_of(subject: Subject, call: ModuleCall) -> Where:
    """The module in whose code a dropout stands: a module of torch is only called there."""
    where = subject.place_of(call)
    is_own = call.module is not None and home_of(call.module)[0] is not None
    return where if is_own or not where.module else owner_of(subject.model, where.module, own_code=True)


def _unnormalized(subject: Subject, steps: Sequence[Addition], behind: Sequence[int]) -> list[Finding]:
    """If every sublayer begins with a norm, the stream grows, and the head should read it through a norm."""
    calls = subject.inside.calls
    norms = {id(call.module) for call in calls if _is_norm(call)}
    begin_with_norms = 2 * len(norms) >= len({id(step.skip) for step in steps})
    begin_with_norms |= 2 * sum(_reads_through_norm(step, calls) for step in steps) >= len(steps)
    # one that stands outside the layers ends a stack before
    between = [index for step in steps if not step.is_first for index in step.between if _is_norm(calls[index])]
    is_outside = layer_of(subject.place_of(steps[-1].call).module) is None
    from_norm = any(is_outside or layer_of(subject.place_of(calls[index]).module) for index in between)
    is_even = any(map(_makes_even, (calls[index] for index in behind)))
    if from_norm or is_even or _has_norm(calls, behind) or not begin_with_norms:
        return []
    layer, called = layer_of(subject.place_of(steps[-1].call).module), {id(call.module) for call in calls}
    outer = ((name, m) for name, m in subject.model.named_modules() if is_leaf_norm(m) and layer_of(name) is None)
    idle = (name for name, module in outer if id(module) not in called)
    unused = next(idle, None)
    path = unused or (layer.rpartition(".")[0].rpartition(".")[0] if layer else "")
    witness = "the head reads the stream as the last layer leaves it, while every sublayer reads it through a norm"
    witness += f"; {unused} is there for it, and is never called" if unused else ""
    where = place_of_module(path, subject.model.get_submodule(path))
    has_head = any(calls[index].name in LINEAR | PRODUCTS for index in behind)  # else a norm may follow elsewhere
    is_sure = unused or (has_head and is_own(subject.model, layer) and len(steps) > FEW)
    against = "its own sublayers, which read the stream through norms" if is_sure else ""
    return [finding("N03", witness, where=where, against=against)]
