"""Residual connections that are missing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.calling.inputs import Inputs
from clearhead.doctor.checks.base import STEADY, Finding, Skipped, Subject, attempt, finding, model_check
from clearhead.doctor.probes.localization import kept_reading
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.replay import reach_of
from clearhead.doctor.state_guard import kept


class Reach(NamedTuple):
    """Whether one token moves anything that is read, and whether at other positions than its own."""

    own: bool
    others: bool


Sublayers = dict[str, nn.Module]  # by path
ReachWithout = Callable[[Iterable[nn.Module]], Reach]  # with the matrices of some modules at zero


@model_check("N04", "residuals", order=290, covers=("N05",), needs=STEADY, of_tokens=True)
def residuals(subject: Subject) -> list[Finding]:
    """With all sublayers at zero a token still reaches its own logits, and with feed-forwards at zero others too."""
    if _reach(subject, (), ()).own:
        return _missing(subject)
    with attempt(), subject.precise():  # where each layer forgets its input, what is left of a token is faint
        return _missing(subject)
    raise Skipped("a token hardly moves its own logits, and the model does not run in float64")


@model_check("N04", "residuals of rows", order=300, covers=("N05",), needs=STEADY)
def residuals_of_rows(subject: Subject) -> list[Finding]:
    """If one output is given for a row, the last layer still reads the row with the sublayers before it at zero."""
    if not subject.gives_rows:
        raise Skipped("it gives one output for each token")
    return _missing(subject)


def _missing(subject: Subject) -> list[Finding]:
    for name, stack in _stacks(subject.model):
        sublayers = _sublayers(name, stack)
        layers: dict[str, list[str]] = {}
        for path in sublayers:
            layers.setdefault(path.rpartition(".")[0], []).append(path)
        *before, last = layers.values()
        # one output for a row shows too little of its tokens: what the last layer reads is read in its place
        reader, judged = ([sublayers[path] for path in last], before) if subject.gives_rows else ([], [*before, last])
        without = partial(_reach, subject, reader)
        guilty = _forgetful(subject, stack, without, sublayers, judged) or _outlived(subject, without, sublayers)
        if guilty is not None:
            return [_without_residual(subject.model, *guilty)]
    return []


def _forgetful(
    subject: Subject, stack: nn.Module, without: ReachWithout, sublayers: Sublayers, layers: Sequence[Sequence[str]]
) -> tuple[str, str] | None:
    """The first sublayer without which nothing passes its layer, and what no longer does."""
    if not layers or not without(()).own or without(sublayers.values()).own:
        return None
    guilty = [[path for path in layer if not without([sublayers[path]]).own] for layer in layers]
    is_whole = guilty == [*layers]
    if subject.gives_rows:  # what makes a row shorter or wider may well be read alone
        is_meant = is_whole or len({tuple(map(_kind, paths)) for paths in guilty}) > 1 or not _is_transformer(stack)
    else:  # where all are guilty it may be intended, but not with two kinds of them and norms, as in Transformers
        is_meant = is_whole and not _is_transformer(stack)
    if is_meant or not any(guilty):
        return None
    first = next(path for paths in guilty for path in paths)
    # several streams may be mixed by matrices of the sublayer's own, around the part that it holds
    parts = _parts(sublayers[first])
    if parts and without(parts).own:
        return None
    lost = "moves what the last layer reads" if subject.gives_rows else "moves its own logits"
    return first, f"with the weights of {first} at zero, a token no longer {lost}"


def _outlived(subject: Subject, without: ReachWithout, sublayers: Sublayers) -> tuple[str, str] | None:
    """The first sublayer that works on each token alone, and without which what others gave the stream is lost."""
    kinds: dict[str, list[str]] = {}
    for path in sublayers:
        kinds.setdefault(_kind(path), []).append(path)
    local = {kind for kind, paths in kinds.items() if _is_local(subject, sublayers[paths[0]])}
    for kind in local if len(kinds) > len(local) and without(()).others else ():
        first, modules = kinds[kind][0], [sublayers[path] for path in kinds[kind]]
        # a single matrix may well be a map that the attention of its layer needs
        if sum(p.dim() > 1 for p in modules[0].parameters()) > 1 and not without(modules).others:
            return first, f"with the weights of all {kind} at zero, no token moves another's logits"
    return None


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
    layers = list(stack.children())
    if len({type(layer) for layer in layers}) != 1:
        return {}
    children = (
        (f"{name}.{n}.{child}".lstrip("."), m) for n, layer in enumerate(layers) for child, m in layer.named_children()
    )
    return {path: module for path, module in children if _has_matrices(module)}


def _has_matrices(module: nn.Module) -> bool:
    """Whether a module is more than a norm."""
    return not is_norm(module) and any(p.dim() > 1 for p in module.parameters())


def _parts(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.children() if _has_matrices(child)]


def _is_transformer(stack: nn.Module) -> bool:
    """Whether layers hold norms, and sublayers of several kinds."""
    is_mixed = len({_kind(path) for path in _sublayers("", stack)}) > 1
    return is_mixed and any(is_norm(module) for module in stack.modules())


def _kind(path: str) -> str:
    return path.rpartition(".")[2]


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


def _reach(subject: Subject, reader: Sequence[nn.Module], silenced: Iterable[nn.Module]) -> Reach:
    """What one changed token moves with the matrices of some modules at zero; everything if that cannot be told.

    Args:
        reader: the input of the first of these to be called is read; if there are none, the logits.
    """
    inputs, other, t = subject.inputs(2, salt=14), subject.inputs(2, salt=15).ids, subject.calling.T // 2
    is_changed = torch.arange(inputs.ids.shape[1]) == t
    new = torch.where(other == inputs.ids, other.roll(1, 1), other)
    changed = inputs.with_tokens(False, torch.where(is_changed, new, inputs.ids))
    with _silent(silenced):
        before, after = (_read(subject, reader, rows) for rows in (inputs, changed))
    positions = kept_reading((~is_changed).expand(inputs.ids.shape))
    own, others = False, False
    for first, second in zip(before, after, strict=True):
        if first.shape != second.shape or not (first.isfinite() & second.isfinite()).all():
            return Reach(True, True)  # a matrix that is divided by its own length cannot be zero
        scale = 8 * torch.finfo(first.dtype).eps * float(first.abs().max())
        moved = torch.where((second - first).abs() > scale, second, first)
        elsewhere = positions(first, moved)
        own |= not torch.equal(first, moved)
        others |= elsewhere is None or bool(elsewhere.any())
    return Reach(own, others) if before else Reach(True, True)


@contextmanager
def _silent(modules: Iterable[nn.Module]) -> Iterator[None]:
    """All matrices in them are zero meanwhile."""
    matrices = [parameter for module in modules for parameter in module.parameters() if parameter.dim() > 1]
    with kept(matrices):
        for parameter in matrices:
            parameter.zero_()
        yield


def _read(subject: Subject, reader: Sequence[nn.Module], rows: Inputs) -> list[Tensor]:
    """All numbers that the first of these modules to be called is given; without any, the logits."""
    tensors: list[Tensor] = []

    def note(_: nn.Module, arguments: tuple[object, ...], named: dict[str, object]) -> None:
        if not tensors:  # of the first call only
            numbers = (value for value in (*arguments, *named.values()) if isinstance(value, Tensor))
            tensors.extend(value.detach().to("cpu", copy=True) for value in numbers if value.is_floating_point())

    with ExitStack() as hooks:
        for module in reader:
            hooks.enter_context(module.register_forward_pre_hook(note, with_kwargs=True))
        logits = subject.run(rows)
    return tensors if reader else [logits]
