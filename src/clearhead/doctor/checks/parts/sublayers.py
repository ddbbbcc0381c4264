"""Residual connections that are missing."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.outputs import tensors
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.probes.locations import layer_of, place_of_module
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.replay import reach_of
from clearhead.doctor.probes.stream import stream
from clearhead.doctor.state_guard import kept

Sublayers = dict[str, nn.Module]  # by path


class Reach(NamedTuple):
    """Whether a token moves its own logits, and those of other positions."""

    own: bool
    others: bool


@model_check("N04", "residuals", order=290, covers=("N05",), needs=STEADY, of_tokens=True)
def residuals(subject: Subject) -> list[Finding]:
    """With all sublayers at zero a token still reaches its own logits, and with feed-forwards at zero others too."""
    before = _reach(subject)
    if before.own:
        return _missing(subject, before)
    with attempt(), subject.precise():  # where each layer forgets its input, what is left of a token is faint
        return _missing(subject, _reach(subject))
    raise Skipped("a token hardly moves its own logits, and the model does not run in float64")


@model_check("N04", "residuals of layers", order=300, covers=("N05",), needs=STEADY)
def residuals_of_layers(subject: Subject) -> list[Finding]:
    """With any one sublayer at zero, what its layer returns still depends on what it reads."""
    layers = list(_layers(subject))
    if not layers:
        raise Skipped("no layer was found that calls an attention and a feed-forward")
    for path, sublayers in (layers[0], layers[-1]) if subject.is_large else layers:
        sides = (source for source in (False, True) if _depends(subject, path, source, nullcontext(), of_input=True))
        side = next(sides, None)
        if side is None or (not path and subject.gives_rows):  # what is read of one place may come by attention alone
            continue
        for name, module in sublayers.items():
            parts = _parts(module)  # matrices of its own may lead around the part that it holds
            silences = (_silent([module]), _silent(parts or [module]), _without_output(module))
            if any(_depends(subject, path, side, silence) for silence in silences):
                continue
            witness = f"with the weights of {name} at zero, {path or 'it'} returns the same whatever it reads"
            return [_without_residual(subject.model, name, witness)]
    return []


def _missing(subject: Subject, before: Reach) -> list[Finding]:
    stacks = _stacks(subject.model)
    if not stacks:
        raise Skipped("no list of layers of one class was found")
    for name, stack in stacks:
        guilty = _guilty(subject, before, stack, _sublayers(name, stack))
        if guilty is not None:
            return [_without_residual(subject.model, *guilty)]
    return []


def _without_residual(model: nn.Module, path: str, witness: str) -> Finding:
    """That nothing leads around a sublayer: in its layer, or in itself if it holds norms beside its one part."""
    sublayer = model.get_submodule(path)
    is_wrapper = len(_parts(sublayer)) == 1 and any(is_norm(child) for child in sublayer.children())
    owner = path if is_wrapper else path.rpartition(".")[0]
    while isinstance(model.get_submodule(owner), (nn.ModuleList, nn.ModuleDict)):  # never called: look further out
        owner = owner.rpartition(".")[0]
    where = place_of_module(owner, model.get_submodule(owner))
    return finding((("N04", 0.9), ("N05", 0.1)), witness, value=0.0, where=where)


def _stacks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Lists of layers of one class that hold sublayers, none of them inside another."""
    containers = [(name, m) for name, m in model.named_modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    outer: list[tuple[str, nn.Module]] = []
    for name, module in containers:  # what holds others comes first
        inside = any(name.startswith(f"{other}.") for other, _ in outer if other)
        outer += [(name, module)] if _sublayers(name, module) and not inside else []
    return outer


def _sublayers(name: str, stack: nn.Module) -> Sublayers:
    """The direct children of a stack's layers that hold matrices."""
    layers = dict(stack.named_children())
    if len({type(layer) for layer in layers.values()}) != 1:
        return {}
    children = (
        (f"{name}.{n}.{child}".lstrip("."), m) for n, layer in layers.items() for child, m in layer.named_children()
    )
    return {path: module for path, module in children if _has_matrices(module)}


def _has_matrices(module: nn.Module) -> bool:
    """Whether a module is more than a norm."""
    return not is_norm(module) and any(p.dim() > 1 for p in module.parameters())


def _parts(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.children() if _has_matrices(child)]


def _is_transformer(stack: nn.Module, sublayers: Sublayers) -> bool:
    """Whether layers hold norms, and sublayers of several kinds."""
    return len({_kind(path) for path in sublayers}) > 1 and any(is_norm(module) for module in stack.modules())


def _kind(path: str) -> str:
    return path.rpartition(".")[2]


def _guilty(subject: Subject, before: Reach, stack: nn.Module, sublayers: Sublayers) -> tuple[str, str] | None:
    """The sublayer without which nothing passes its layer, and what no longer does."""
    if before.own and not _reach_without(subject, sublayers.values()).own:
        guilty = [path for path, module in sublayers.items() if not _reach_without(subject, [module]).own]
        # several streams may be mixed by matrices of the sublayer's own, around the part that it holds
        parts = _parts(sublayers[guilty[0]]) if guilty else []
        if parts and _reach_without(subject, parts).own:
            return None
        # where all are guilty it may be intended, but not with two kinds of them and norms, as in Transformers
        if guilty and (len(guilty) < len(sublayers) or _is_transformer(stack, sublayers)):
            return guilty[0], f"with the weights of {guilty[0]} at zero, a token no longer moves its own logits"
    kinds: dict[str, list[str]] = {}
    for path in sublayers:
        kinds.setdefault(_kind(path), []).append(path)
    local = {kind for kind, paths in kinds.items() if _is_local(subject, sublayers[paths[0]])}
    for kind in local if len(kinds) > len(local) and before.others else ():
        first, modules = kinds[kind][0], [sublayers[path] for path in kinds[kind]]
        if sum(p.dim() > 1 for p in modules[0].parameters()) < 2 or _reach_without(subject, modules).others:
            continue
        if _comes_last(subject, first, local):
            return first, f"with the weights of all {kind} at zero, no token moves another's logits"
    return None


def _is_local(subject: Subject, module: nn.Module) -> bool:
    """Whether a module works on each token by itself: it holds no attention and nothing else that mixes tokens."""
    call = next((call for call in subject.module_calls if call.module is module), None)
    if call is None or not call.inputs or call.inputs[0].dim() != 3:
        return False
    axis, dtype = 0 if subject.convention.time_first else 1, next(module.parameters()).dtype
    call = replace(call, inputs=[call.inputs[0].to(dtype)])
    value = None
    with attempt():  # it may need more than one tensor: a mask, positions
        value = reach_of(call, axis, 0, torch.ones((), dtype=dtype))
    return value is not None and value <= 1e-6


def _comes_last(subject: Subject, path: str, local: set[str]) -> bool:
    """Whether a sublayer is called after those of its layer that mix tokens."""
    owner, _, name = path.rpartition(".")
    children = dict(subject.model.get_submodule(owner).named_children())
    paths = {f"{owner}.{kind}": kind for kind, child in children.items() if kind == name or _has_matrices(child)}
    order = [paths[call.name] for call in subject.modules_called(subject.inputs(2)) if call.name in paths]
    mixing = [kind for kind in order if kind not in local]
    return bool(mixing) and name in order and order.index(name) > order.index(mixing[0])


def _reach(subject: Subject) -> Reach:
    """What one changed token moves; everything if that cannot be told."""
    inputs, other, t = subject.inputs(2, salt=14), subject.inputs(2, salt=15), subject.calling.T // 2
    ids = inputs.ids.clone()
    ids[:, t] = torch.where(other.ids[:, t] == ids[:, t], other.ids[:, t - 1], other.ids[:, t])
    base = subject.run(inputs)
    if not base.isfinite().all():  # a matrix that is divided by its own length cannot be zero
        return Reach(True, True)
    scale = 8 * torch.finfo(base.dtype).eps * float(base.abs().max())
    moved = (subject.run(replace(inputs, ids=ids)) - base).abs().amax((0, 2)) > scale  # (T,)
    return Reach(bool(moved[t]), bool(moved[torch.arange(len(moved)) != t].any()))


def _reach_without(subject: Subject, modules: Iterable[nn.Module]) -> Reach:
    with _silent(modules):
        return _reach(subject)


@contextmanager
def _silent(modules: Iterable[nn.Module]) -> Iterator[None]:
    """All matrices in them are zero meanwhile."""
    matrices = _matrices(modules)
    with kept(matrices):
        for parameter in matrices:
            parameter.zero_()
        yield


def _matrices(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters() if parameter.dim() > 1]


@contextmanager
def _without_output(module: nn.Module) -> Iterator[None]:
    """It returns zeros meanwhile."""

    def zeros(_: nn.Module, arguments: object, output: object) -> object:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:]) if isinstance(output[0], Tensor) else output
        return torch.zeros_like(output) if isinstance(output, Tensor) else output

    with module.register_forward_hook(zeros):
        yield


def _layers(subject: Subject) -> Iterator[tuple[str, Sublayers]]:
    """Modules that hold norms, and call an attention and something wider that keeps the shape of what it reads."""
    calls = {call.name: call for call in subject.module_calls if call.inputs and call.outputs}
    attending = [f"{subject.place_of(attention.call).module}." for attention in subject.attentions]
    adders = [f"{subject.place_of(step.call).module}." for step in stream(*subject.inside)[0]]
    for path, module in subject.model.named_modules():
        children = {f"{path}.{name}".lstrip("."): child for name, child in module.named_children()}
        sublayers = {name: child for name, child in children.items() if name in calls and _has_matrices(child)}
        if any(sum(adder.startswith(f"{name}.") for adder in adders) > 1 for name in sublayers):
            continue  # they are layers, or stacks of them
        if not (path == layer_of(path) and f"{path}." in attending):  # else its parts are single maps
            sublayers = {n: m for n, m in sublayers.items() if calls[n].inputs[0].shape == calls[n].outputs[0].shape}
            mixing = {name for name in sublayers if any(user.startswith(f"{name}.") for user in attending)}
            local = [
                n for n, m in sublayers.items() if n not in mixing and sum(p.dim() > 1 for p in m.parameters()) > 1
            ]
            sublayers = {name: sublayers[name] for name in (*mixing, *local)} if mixing and local else {}
        if sublayers and any(is_norm(part) for part in module.modules()):
            yield path, sublayers


def _depends(
    subject: Subject, path: str, source: bool, silence: AbstractContextManager[object], *, of_input: bool = False
) -> bool:
    """Whether what a layer returns depends on the ids or the source, with a sublayer silenced in some way.

    True if that cannot be told. Of a layer that is never called, such as a list, it is asked what the module around it
    returns.

    Args:
        of_input: ask about the first tensor that it reads instead.
    """
    numbers: list[Tensor] = []

    def note(_: nn.Module, arguments: object, named: object, output: object = None) -> None:
        parts = [part for part in tensors((arguments, named) if of_input else output) if part.is_floating_point()]
        numbers.extend(part.detach().cpu().flatten() for part in (parts[:1] if of_input else parts))

    called = {call.name for call in subject.module_calls}
    while path and path not in called:
        path = path.rpartition(".")[0]
    module, results = subject.model.get_submodule(path), []
    register = module.register_forward_pre_hook if of_input else module.register_forward_hook
    inputs, other = subject.inputs(2, salt=14), subject.inputs(2, salt=15)
    if source and not subject.convention.has_source:
        return False
    with silence, register(note, with_kwargs=True):
        for batch in (inputs, inputs.with_tokens(source, other.tokens(source))):
            numbers.clear()
            subject.run(batch)
            results.append(torch.cat(numbers) if numbers else torch.empty(0))
    first, second = results
    if first.shape != second.shape or not len(first) or not (first.isfinite() & second.isfinite()).all():
        return not of_input
    return float((first - second).abs().max()) > 8 * torch.finfo(first.dtype).eps * float(first.abs().max())
