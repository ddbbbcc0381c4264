"""The residual stream: what it is taken from in each sublayer, what lies on it, and whether it is normalized last."""

from collections import Counter
from collections.abc import Sequence

from torch import Tensor, nn

from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.checks.locations import place_of
from clearhead.doctor.probes.locations import layer_of, owner_of, place_of_module
from clearhead.doctor.probes.norms import is_leaf_norm
from clearhead.doctor.probes.products import LINEAR, NORMS
from clearhead.doctor.probes.stream import Addition, stream
from clearhead.doctor.probes.tracing import ModuleCall, dropout_probability, home_of, recorded_ops
from clearhead.doctor.report.findings import Finding, Status, Where
from clearhead.doctor.subject import Subject

LEFT = 0.01  # of the largest number: what the smallness that a norm adds changes


@model_check(
    "N05",
    "streams",
    order=310,
    covers=("N03", "N04", "N05", "N10"),
    holds="the sublayers of a layer take their residual alike, without dropout on it, and a norm ends the stream",
    needs=("finite", "layouts", "residuals"),
)
def streams(subject: Subject) -> list[Finding]:
    """Every sublayer of a layer takes its residual alike; no dropout lies on the stream; pre-norm ends with a norm."""
    calls, logits = subject.inside
    steps, behind = stream(calls, logits)
    if len(steps) < 2:
        raise Skipped("no residual stream was found")
    from_norm = [step.is_first is False and _has_norm(calls, step.between) for step in steps]
    return (
        _mixed(subject, steps, calls)
        + _dropped(subject)
        + _unnormalised(subject, steps, from_norm, [calls[index] for index in behind])
    )


def _has_norm(calls: Sequence[ModuleCall], branch: Sequence[int]) -> bool:
    return any(_is_norm(calls[index]) for index in branch)


def _is_norm(call: ModuleCall) -> bool:
    return call.name in NORMS or is_leaf_norm(call.module)


def _mixed(subject: Subject, steps: Sequence[Addition], calls: Sequence[ModuleCall]) -> list[Finding]:
    """In one layer the stream itself is carried on, and what a norm made of it as well."""
    places = [place_of(subject, step.call) for step in steps]
    from_norm = [_has_norm_of_a_layer(subject, calls, step) for step in steps]
    layers: dict[str, list[int]] = {}
    for number, where in enumerate(places):
        layer = layer_of(where.module)
        if layer is not None and not steps[number].is_first and number > 0:
            layers.setdefault(layer, []).append(number)
    kinds = Counter(from_norm[number] for numbers in layers.values() for number in numbers)
    for layer, numbers in list(layers.items())[1:]:  # before the first layer a norm of the embeddings may stand
        if len({from_norm[number] for number in numbers}) < 2:
            continue
        rare = kinds.most_common()[-1][0] if kinds[True] != kinds[False] else True
        number = next(number for number in numbers if from_norm[number] == rare)
        witness = (
            f"in {layer} one sublayer is added to what it reads after a norm, and another to the stream before its norm"
        )
        # only beside a sublayer that reads the stream through a norm of its own is it no way of building
        is_odd = any(not from_norm[other] and _reads_through_norm(steps[other], calls) for other in numbers)
        status: Status = "warn"
        if is_odd and _is_left(subject, layer, steps, number):
            witness += f": twice the stream that {layer} is given is the same to the first"
            status = "fail"
        return [finding((("N05", 0.9), ("N04", 0.1)), witness, where=places[number], status=status)]
    return []


def _has_norm_of_a_layer(subject: Subject, calls: Sequence[ModuleCall], step: Addition) -> bool:
    """Whether what a step carries on comes from a norm in a layer, be it the one before; one between stacks is none."""
    norms = (calls[index] for index in step.between if _is_norm(calls[index]))
    return not step.is_first and any(layer_of(place_of(subject, norm).module) is not None for norm in norms)


def _reads_through_norm(step: Addition, calls: Sequence[ModuleCall]) -> bool:
    """Whether a norm reads the very tensor that the branch is added to."""
    before = calls[: step.index]
    return any(_is_norm(call) and any(part is step.skip for part in call.options["args"]) for call in before)


def _is_left(subject: Subject, layer: str, steps: Sequence[Addition], number: int) -> bool:
    """Whether an addition's skip stays as it is where the layer is given twice the stream: a norm took its size."""

    done: list[str] = []

    def twice(module: nn.Module, args: tuple[object, ...]) -> tuple[object, ...]:
        if not args or not isinstance(args[0], Tensor):
            return args
        done.append(layer)
        return (2 * args[0], *args[1:])

    handle = subject.model.get_submodule(layer).register_forward_pre_hook(twice)
    try:
        with subject.quiet(), recorded_ops() as ops:
            end = subject.run(subject.inputs(2))
    finally:
        handle.remove()
    again, _ = stream(ops.calls, end)
    if not done or len(again) != len(steps):
        return False
    before, after = steps[number].skip, again[number].skip
    moved = float((after - before).abs().max()) / (float(before.abs().max()) or 1.0)
    return moved < LEFT


def _dropped(subject: Subject) -> list[Finding]:
    """In training, dropout between two additions takes numbers from the stream itself and not from a branch."""
    calls, logits = subject.inside_training
    if not any(dropout_probability(call) for call in calls):
        return []
    for step in stream(calls, logits)[0]:
        for index in () if step.is_first else step.between:
            call = calls[index]
            p = dropout_probability(call)
            if p and not any(calls[other].name in LINEAR for other in step.between):  # else it lies in a sublayer
                witness = f"in training each number of the stream is lost with p={p:g} before the next sublayer"
                status: Status = "warn" if _has_norm(calls, step.between) else "fail"  # behind a norm many do so
                return [finding("N10", witness, value=p, where=_caller_of(subject, call), status=status)]
    return []


def _caller_of(subject: Subject, call: ModuleCall) -> Where:
    """The module in whose code a dropout stands: one of torch's own is only called there."""
    where = place_of(subject, call)
    is_own = call.module is not None and home_of(call.module)[0] is not None
    return where if is_own or not where.module else owner_of(subject.model, where.module, own_code=True)


def _unnormalised(
    subject: Subject, steps: Sequence[Addition], from_norm: Sequence[bool], behind: Sequence[ModuleCall]
) -> list[Finding]:
    """Sublayers that each begin with a norm leave the stream as it grew; the head should read it normalized."""
    inner = [kind for step, kind in zip(steps, from_norm, strict=True) if not step.is_first]
    if any(inner) or any(_is_norm(call) for call in behind) or not _begin_with_norms(subject, steps):
        return []
    layer = layer_of(place_of(subject, steps[-1].call).module)
    path = layer.rpartition(".")[0].rpartition(".")[0] if layer else ""
    idle = _idle_norm(subject)
    path = path if idle is None else idle
    module = subject.model.get_submodule(path)
    witness = "the head reads the stream as the last layer left it, while every sublayer reads it through a norm"
    where = place_of_module(path, module)
    return [finding("N03", witness, where=where, status="warn")]


def _begin_with_norms(subject: Subject, steps: Sequence[Addition]) -> bool:
    """Whether norms read the stream: as many of them as there are additions, or nearly."""
    skips = {id(step.skip) for step in steps}
    norms = {id(call.module) for call in subject.inside.calls if _is_norm(call)}
    return len(norms) * 2 >= len(skips)


def _idle_norm(subject: Subject) -> str | None:
    """A norm outside the layers that is never called."""
    called = {id(call.module) for call in subject.inside.calls}
    return next(
        (
            name
            for name, module in subject.model.named_modules()
            if is_leaf_norm(module) and id(module) not in called and layer_of(name) is None
        ),
        None,
    )  # fmt: skip
