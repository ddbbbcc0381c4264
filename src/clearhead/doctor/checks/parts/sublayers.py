"""Residual connections that are missing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.probes.locations import is_own, layer_of, place_of_module
from clearhead.doctor.probes.masking import unattended
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.products import LINEAR, PRODUCTS
from clearhead.doctor.probes.replay import reach_of
from clearhead.doctor.probes.tracing import ModuleCall
from clearhead.doctor.state_guard import kept

ROUTING = {"softmax", "topk"}  # operations
Sublayers = dict[str, nn.Module]  # by path
Silence = Callable[[Iterable[nn.Module]], AbstractContextManager[None]]


@model_check("N04", "residuals", order=300, covers=("N05",), needs=STEADY)
def residuals(subject: Subject) -> list[Finding]:
    """With a sublayer at zero, what its layer returns still depends on what it reads, and on its attention."""
    layers = list(_layers(subject))
    if not layers:
        raise Skipped("no layer was found that calls an attention and a feed-forward")
    suspects: list[tuple[str, str, bool]] = []  # layers, their sublayers that nothing leads around, and their side
    sound: set[type] = set()  # classes of layers that have a residual
    routers = _routers(subject)
    for path, sublayers, mixing in (layers[0], layers[-1]) if subject.is_large else layers:
        sides = (source for source in (False, True) if _depends(subject, path, source, nullcontext(), of_input=True))
        side = next(sides, None)
        if side is None or (not path and subject.gives_rows):  # what is read of one place may come by attention alone
            continue
        layer = subject.model.get_submodule(path)
        sound |= {type(layer)} if _depends(subject, path, side, _silent([layer])) else set()
        for name, module in sublayers.items():
            is_routed = any(f"{choosing}.".startswith(f"{name}.") for choosing in routers)
            silences = _silences(module, name in mixing, is_routed)
            if any(_depends(subject, path, side, silence(modules)) for silence, modules in silences):
                sound |= {type(layer)}
            elif _is_a_branch(subject, path):
                break
            else:
                suspects.append((path, name, side))
            others = [sublayers[other] for other in mixing]
            if mixing and name not in mixing and all(
                _is_same(*(_returned(subject, path, quiet([*part, *more])) for more in ([], others)))
                for quiet, part in silences
            ) and _is_beside(subject, path, name, side, others):  # fmt: skip
                witness = (
                    f"with the weights of {name} at zero, {path or 'it'} returns the same whatever {mixing[0]} does"
                )
                fault = _without_residual(subject.model, name, witness, "its own attention, which is thrown away")
                # a library's layer may be meant to read its attention only, as Zamba2's
                return [fault if is_own(subject.model, name) else replace(fault, status="warn")]
    for path, name, side in suspects[:1]:
        witness = f"with the weights of {name} at zero, {path or 'it'} returns the same whatever it reads"
        layer = subject.model.get_submodule(path)
        own = {*map(id, subject.model.get_submodule(name).modules())}
        rest = [part for part in layer.modules() if id(part) not in own and not [*part.children()]]
        has_others = type(layer) in sound or _depends(subject, path, side, _silent(rest))
        against = "the other sublayers, which it leads around" if has_others else ""
        return [_without_residual(subject.model, name, witness, against)]
    return []


def _silences(module: nn.Module, is_mixing: bool, is_routed: bool) -> list[tuple[Silence, list[nn.Module]]]:
    """Ways to take a sublayer away. Matrices of its own may lead around the part that it holds.

    Experts do not lead around their router, nor does the router, which chooses between their biases.
    """
    parts = _parts(module)
    silences: list[tuple[Silence, list[nn.Module]]] = [(_silent, [module]), (_silent, parts or [module])]
    silences.append((_without_output, [module]))
    if is_mixing:
        return [*silences, (unattended, [module])]
    if len(parts) > 1 and not is_routed:  # or a single one of them does, as a residual of what was projected
        silences += [(_silent, [other for other in parts if other is not part]) for part in parts]
    return silences


def _routers(subject: Subject) -> list[str | None]:
    """The modules that choose something for each token, or mix it by shares, and are no attention."""
    attending = {attention.index for attention in subject.attentions if attention.value_product}
    calls = enumerate(subject.inside.calls)
    return [subject.place_of(call).module for i, call in calls if call.name in ROUTING and i not in attending]


def _is_a_branch(subject: Subject, path: str) -> bool:
    """Whether what a module returns is added, before any other map, to what was there before it: it is no layer."""
    flow, calls = subject.inside.flow, subject.inside.calls
    inside = [i for i, call in enumerate(calls) if f"{subject.place_of(call).module}.".startswith(f"{path}.")]
    return bool(path and inside) and any(
        step.index > inside[-1]
        and (flow.maker(step.skip, step.index) or 0) < inside[0]
        and not any(call.name in LINEAR | PRODUCTS for call in calls[inside[-1] + 1 : step.index])
        for step in subject.inside.stream[0]
    )


def _is_beside(subject: Subject, path: str, name: str, side: bool, mixing: list[nn.Module]) -> bool:
    """Whether an attention moves what a layer returns, and a sublayer reads more than it: else they are one branch."""
    is_read = not _is_same(*(_returned(subject, path, silence) for silence in (nullcontext(), _silent(mixing))))
    return is_read and _depends(subject, name, side, _without_output(mixing), of_input=True)


def _without_residual(model: nn.Module, path: str, witness: str, against: str) -> Finding:
    """That nothing leads around a sublayer: in its layer, or in itself if it holds norms beside its one part."""
    sublayer = model.get_submodule(path)
    is_wrapper = len(_parts(sublayer)) == 1 and any(is_norm(child) for child in sublayer.children())
    owner = path if is_wrapper else path.rpartition(".")[0]
    while isinstance(model.get_submodule(owner), (nn.ModuleList, nn.ModuleDict)):  # never called: look further out
        owner = owner.rpartition(".")[0]
    where = place_of_module(owner, model.get_submodule(owner))
    return finding((("N04", 0.9), ("N05", 0.1)), witness, value=0.0, where=where, against=against)


def _matrices(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters() if parameter.dim() > 1]


def _has_matrices(module: nn.Module) -> bool:
    """Whether a module is more than a norm."""
    return not is_norm(module) and bool(_matrices([module]))


def _parts(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.children() if _has_matrices(child)]


@contextmanager
def _silent(modules: Iterable[nn.Module]) -> Iterator[None]:
    """All matrices in them are zero meanwhile."""
    matrices = _matrices(modules)
    with kept(matrices):
        for parameter in matrices:
            parameter.zero_()
        yield


@contextmanager
def _without_output(modules: Iterable[nn.Module]) -> Iterator[None]:
    """They return zeros meanwhile."""

    def zeros(_: nn.Module, arguments: object, output: object) -> object:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:]) if isinstance(output[0], Tensor) else output
        return torch.zeros_like(output) if isinstance(output, Tensor) else output

    hooks = [module.register_forward_hook(zeros) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _layers(subject: Subject) -> Iterator[tuple[str, Sublayers, list[str]]]:
    """Modules that call an attention and something wider that keeps the shape of what it reads, with both of these.

    They hold norms, or stand in a list. Third come the paths of those sublayers that attend.
    """
    calls = {call.name: call for call in subject.module_calls if call.inputs and call.outputs}
    maps = (a for a in subject.attentions if a.value_product or a.call.name != "softmax")  # which a router has
    users = [subject.place_of(attention.call).module for attention in maps]
    attending = [f"{user}." for user in users]
    adders = [f"{subject.place_of(step.call).module}." for step in subject.inside.stream[0]]
    for path, module in subject.model.named_modules():
        children = {f"{path}.{name}".lstrip("."): child for name, child in module.named_children()}
        sublayers = {name: child for name, child in children.items() if name in calls and _has_matrices(child)}
        is_listed, mixing = path == layer_of(path), []
        # within a layer, one without an attention may be a sum of experts
        inside = [name for name in sublayers if not is_listed or any(user.startswith(f"{name}.") for user in attending)]
        if any(sum(adder.startswith(f"{name}.") for adder in adders) > 1 for name in inside):
            continue  # they are layers, or stacks of them
        if not (is_listed and f"{path}." in attending):  # else its parts are single maps
            sublayers = {n: m for n, m in sublayers.items() if calls[n].inputs[0].shape == calls[n].outputs[0].shape}
            mixing = [name for name in sublayers if any(user.startswith(f"{name}.") for user in attending)]
            if None in users and is_listed:  # some attention is a module that is made anew in each call
                mixing = [name for name in sublayers if not _is_local(subject, calls[name])]
            local = [n for n, m in sublayers.items() if n not in mixing and len(_matrices([m])) > 1]
            has_more = is_listed and len(_matrices([module])) > len(_matrices(sublayers[name] for name in mixing))
            sublayers = {name: sublayers[name] for name in (*mixing, *local)} if mixing and (local or has_more) else {}
        if sublayers and (is_listed or any(is_norm(part) for part in module.modules())):
            yield path, sublayers, mixing


def _is_local(subject: Subject, call: ModuleCall) -> bool:
    """Whether a module works on each token by itself, as far as it can be called with one tensor."""
    value = None
    if call.inputs[0].dim() == 3:
        with attempt():  # it may need more than one tensor: a mask, positions
            value = reach_of(call, 0 if subject.convention.time_first else 1, 0, torch.ones(()))
    return value is not None and value <= 1e-6


def _depends(
    subject: Subject, path: str, source: bool, silence: AbstractContextManager[object], *, of_input: bool = False
) -> bool:
    """Whether what a layer returns depends on the ids or the source, with a sublayer silenced in some way.

    True if that cannot be told.

    Args:
        of_input: ask about what it reads instead: a decoder's layer may be given the memory first.
    """
    if source and not subject.convention.has_source:
        return False
    if of_input and not path:
        return True  # the model itself
    inputs, other = subject.inputs(2, salt=14), subject.inputs(2, salt=15)
    with silence:
        first, second = (
            _returned(subject, path, nullcontext(), batch, of_input=of_input)
            for batch in (inputs, inputs.with_tokens(source, other.tokens(source)))
        )
    if first.shape != second.shape or not len(first) or not (first.isfinite() & second.isfinite()).all():
        return not of_input
    return not _is_same(first, second)


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Whether all numbers are the same but for rounding; not if there are none, or infinite ones."""
    if first.shape != second.shape or not len(first):
        return False
    return float((first - second).abs().max()) <= 8 * torch.finfo(first.dtype).eps * float(first.abs().max())


def _returned(
    subject: Subject,
    path: str,
    silence: AbstractContextManager[object],
    inputs: Inputs | None = None,
    *,
    of_input: bool = False,
) -> Tensor:
    """The numbers of the first tensor that a layer returns, or of what it reads of that shape, in all of its calls.

    Of a layer that is never called, such as a list, it is what the module around it returns.
    """
    numbers: list[Tensor] = []

    def note(_: nn.Module, arguments: object, named: object, output: object) -> None:
        read, returned = (
            [part for part in tensors(value) if part.is_floating_point()] for value in ((arguments, named), output)
        )
        parts = returned[:1]  # behind it come caches and losses
        if of_input:  # the memory, or a row that latents read, is of another length than what is returned
            alike = [part for part in read if returned and part.shape == returned[0].shape]
            parts = (alike or read)[:1]
        numbers.extend(part.detach().cpu().flatten() for part in parts)

    called = {call.name for call in subject.module_calls}
    while path and path not in called:
        path = path.rpartition(".")[0]
    module = subject.model.get_submodule(path)
    with silence, module.register_forward_hook(note, with_kwargs=True):
        subject.run(inputs or subject.inputs(2, salt=14))
    return torch.cat(numbers) if numbers else torch.empty(0)
