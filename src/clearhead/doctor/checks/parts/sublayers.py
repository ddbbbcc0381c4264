"""Residual connections that are missing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import Skipped, finding, model_check
from clearhead.doctor.probes.locations import place_of_module
from clearhead.doctor.probes.norms import is_norm
from clearhead.doctor.probes.tracing import recorded_modules
from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject


@model_check(
    "N04",
    "residuals",
    order=290,
    covers=("N04", "N05"),
    holds="with sublayers at zero a token still reaches its own logits, and those of others",
    needs=("finite", "deterministic"),
    of_tokens=True,
)
def residuals(subject: Subject) -> list[Finding]:
    """With every sublayer silent a token still reaches its own logits, and with the feed-forwards silent others do."""
    reach = _reaches(subject)
    if reach.own:
        return _missing(subject, reach)
    with attempt(), subject.precise():  # where each layer forgets its input, what is left of a token is faint
        return _missing(subject, _reaches(subject))
    raise Skipped("a token hardly moves its own logits, and the model does not run in float64")


def _missing(subject: Subject, before: "Reach") -> list[Finding]:
    for name, stack in stacks(subject.model):
        sublayers = sublayers_of(name, stack)
        guilty = _guilty(subject, before, name, stack, sublayers)
        if guilty is not None:
            return [without_residual(subject.model, *guilty)]
    return []


def without_residual(model: nn.Module, path: str, witness: str) -> Finding:
    """That nothing leads around a sublayer."""
    owner = _wrapper(model, path)
    where = place_of_module(owner, model.get_submodule(owner))
    return finding((("N04", 0.9), ("N05", 0.1)), witness, value=0.0, where=where)


def stacks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Lists of layers of one kind that hold sublayers, none of them inside another."""
    containers = [(name, m) for name, m in model.named_modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    containers = [(name, m) for name, m in containers if sublayers_of(name, m)]
    return [
        (name, m) for name, m in containers if not any(name.startswith(other + ".") for other, _ in containers if other)
    ]


def _wrapper(model: nn.Module, path: str) -> str:
    """Where the residual should be: in the layer, or in the sublayer itself if it holds norms beside its one part."""
    sublayer = model.get_submodule(path)
    parts = [child for child in sublayer.children() if has_matrices(child)]
    is_wrapper = len(parts) == 1 and any(is_norm(child) for child in sublayer.children())
    owner = path if is_wrapper else path.rpartition(".")[0]
    while isinstance(model.get_submodule(owner), (nn.ModuleList, nn.ModuleDict)):  # whoever calls what they hold
        owner = owner.rpartition(".")[0]
    return owner


def _guilty(
    subject: Subject, before: "Reach", name: str, stack: nn.Module, sublayers: list[tuple[str, nn.Module]]
) -> tuple[str, str] | None:
    """The sublayer without which nothing passes its layer, and what no longer does."""
    left = _silenced(subject, [module for _, module in sublayers])
    if before.own and not left.own:
        guilty = [path for path, module in sublayers if not _silenced(subject, [module]).own]
        if guilty and _carries_the_stream(subject, subject.model.get_submodule(guilty[0])):
            return None
        # where all are, it may be meant so: not with two kinds of them and norms beside them, as Transformers have
        if guilty and (len(guilty) < len(sublayers) or is_transformer(stack, sublayers)):
            return guilty[0], f"with the weights of {guilty[0]} at zero, another token no longer moves its own logits"
    kinds: dict[str, list[tuple[str, nn.Module]]] = {}
    for path, module in sublayers:
        kinds.setdefault(path.rpartition(".")[2], []).append((path, module))
    local = {kind for kind, parts in kinds.items() if _is_local(subject, parts[0][1])}
    for kind in local if len(kinds) > len(local) else ():
        parts = kinds[kind]
        if sum(p.dim() > 1 for p in parts[0][1].parameters()) < 2 or not before.others:
            continue
        if not _silenced(subject, [module for _, module in parts]).others and _comes_last(subject, parts[0][0], local):
            return parts[0][0], f"with the weights of all {kind} at zero, no token moves another's logits any more"
    return None


def _carries_the_stream(subject: Subject, sublayer: nn.Module) -> bool:
    """Whether matrices of its own, around the part that it holds, let a token pass: several streams that are mixed."""
    parts = [child for child in sublayer.children() if has_matrices(child)]
    return bool(parts) and _silenced(subject, parts).own


def is_transformer(stack: nn.Module, sublayers: list[tuple[str, nn.Module]]) -> bool:
    """Whether layers hold norms, and sublayers of several kinds."""
    kinds = {path.rpartition(".")[2] for path, _ in sublayers}
    return len(kinds) > 1 and any(is_norm(module) for module in stack.modules())


def _is_local(subject: Subject, module: nn.Module) -> bool:
    """Whether a module makes of each token something by itself: it holds no attention and no other mixing."""
    call = next((call for call in subject.module_calls if call.module is module), None)
    if call is None or not call.inputs or call.inputs[0].dim() != 3:
        return False
    x, axis = call.inputs[0].to(next(module.parameters()).dtype), 0 if subject.convention.time_first else 1
    other = x.clone()
    other.select(axis, 0).add_(1.0)
    with attempt() as attempted, subject.quiet():
        outputs = [module(tensor.to(subject.device)) for tensor in (x.clone(), other)]
    if attempted.failed:  # it wants more than one tensor: a mask, positions
        return False
    before, after = (y[0] if isinstance(y, tuple) else y for y in outputs)
    if not isinstance(before, Tensor) or before.dim() != 3:
        return False
    change = (after - before).abs().cpu()
    return bool((change.movedim(axis, 0)[1:] <= 1e-6 * float(change.max())).all())


def _comes_last(subject: Subject, path: str, local: set[str]) -> bool:
    """Whether a sublayer is called behind those of its layer that mix tokens."""
    owner, _, name = path.rpartition(".")
    layer = subject.model.get_submodule(owner)
    kinds = {kind for kind, child in layer.named_children() if kind == name or has_matrices(child)}
    with subject.quiet(), recorded_modules(layer) as calls:
        subject.run(subject.inputs(2))
    order = [call.name for call in calls if call.name in kinds]
    mixing = [kind for kind in order if kind not in local]
    return bool(mixing) and name in order and order.index(name) > order.index(mixing[0])


def has_matrices(module: nn.Module) -> bool:
    """Whether a module is more than a norm."""
    return not is_norm(module) and any(p.dim() > 1 for p in module.parameters())


def sublayers_of(name: str, stack: nn.Module) -> list[tuple[str, nn.Module]]:
    """The direct children of a stack's layers that hold matrices."""
    layers = list(stack.children())
    if len({type(layer) for layer in layers}) != 1:
        return []
    return [
        (f"{name}.{number}.{child_name}".lstrip("."), child)
        for number, layer in enumerate(layers)
        for child_name, child in layer.named_children()
        if has_matrices(child)
    ]


class Reach(NamedTuple):
    """Whether a token moves its own logits, and later or other ones."""

    own: bool
    others: bool


def _reaches(subject: Subject) -> Reach:
    """What one changed token moves; everything where that cannot be told."""
    inputs = subject.inputs(2, salt=14)
    other = subject.inputs(2, salt=15)
    t = subject.calling.T // 2
    ids = inputs.ids.clone()
    ids[:, t] = torch.where(other.ids[:, t] == ids[:, t], other.ids[:, t - 1], other.ids[:, t])
    with torch.no_grad(), subject.quiet():
        base = subject.run(inputs)
        if not base.isfinite().all():  # a matrix that is divided by its own length cannot be zero
            return Reach(True, True)
        scale = 8 * torch.finfo(base.dtype).eps * float(base.abs().max())
        moved = (subject.run(replace(inputs, ids=ids)) - base).abs().amax((0, 2)) > scale  # (T,)
    return Reach(bool(moved[t]), bool(moved[torch.arange(len(moved)) != t].any()))


def _silenced(subject: Subject, modules: Iterable[nn.Module]) -> Reach:
    with silent(modules):
        return _reaches(subject)


@contextmanager
def silent(modules: Iterable[nn.Module]) -> Iterator[None]:
    """All matrices in them are zero meanwhile."""
    kept: list[tuple[nn.Parameter, Tensor]] = []
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    kept.append((parameter, parameter.detach().clone()))
                    parameter.zero_()
        try:
            yield
        finally:
            for parameter, values in reversed(kept):
                parameter.copy_(values)
