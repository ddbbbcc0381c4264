"""Residual connections that are missing in a model that says one thing of a whole row."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import Skipped, model_check
from clearhead.doctor.checks.parts.sublayers import (
    has_matrices,
    is_transformer,
    silent,
    stacks,
    sublayers_of,
    without_residual,
)
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.subject import Subject

Sublayers = list[tuple[str, nn.Module]]


@model_check(
    "N04",
    "residuals of rows",
    order=300,
    covers=("N04", "N05"),
    holds="a residual passes the last layer where one output is given for a row",
    needs=("finite", "deterministic"),
)
def residuals_of_rows(subject: Subject) -> list[Finding]:
    """With every sublayer silent the last layer of a stack still reads what the first one read."""
    if not subject.gives_rows:
        raise Skipped("it gives one output for each token")
    for name, stack in stacks(subject.model):
        sublayers = sublayers_of(name, stack)
        path = _guilty(subject, name, sublayers) if is_transformer(stack, sublayers) else None
        if path is not None:
            witness = f"with the weights of {path} at zero, the last layer of {name} reads the same of every row"
            return [without_residual(subject.model, path, witness)]
    return []


def _guilty(subject: Subject, name: str, sublayers: Sublayers) -> str | None:
    """The first of the sublayers behind which nothing is left of a row, where all layers have the same of them."""
    layers: dict[str, Sublayers] = {}
    for path, module in sublayers:
        layers.setdefault(path.rpartition(".")[0], []).append((path, module))
    *before, last = layers.values()
    reader = [module for _, module in last]
    if not before or not _passes(subject, reader, ()) or _passes(subject, reader, [part for _, part in sublayers]):
        return None
    guilty = [[path for path, part in layer if not _passes(subject, reader, [part])] for layer in before]
    kinds = {tuple(path.rpartition(".")[2] for path in paths) for paths in guilty}
    if len(kinds) != 1 or not 0 < len(guilty[0]) < len(before[0]):
        return None  # what makes a row shorter, or wider, may well be read alone
    parts = [child for child in subject.model.get_submodule(guilty[0][0]).children() if has_matrices(child)]
    return None if parts and _passes(subject, reader, parts) else guilty[0][0]


def _passes(subject: Subject, reader: Sequence[nn.Module], silenced: Iterable[nn.Module]) -> bool:
    """Whether what the first of these modules reads depends on the row, with the matrices of others at zero.

    True where that cannot be told.
    """
    with silent(silenced), subject.quiet():
        first, second = (_read(subject, reader, salt) for salt in (14, 15))
    if (
        first is None
        or second is None
        or first.shape != second.shape
        or not (first.isfinite() & second.isfinite()).all()
    ):
        return True
    return float((first - second).abs().max()) > 8 * torch.finfo(first.dtype).eps * float(first.abs().max())


def _read(subject: Subject, modules: Sequence[nn.Module], salt: int) -> Tensor | None:
    """All numbers that the first of these modules to be called is given, for random rows."""
    tensors: list[Tensor] = []

    def note(_: nn.Module, arguments: tuple[object, ...], named: dict[str, object]) -> None:
        if not tensors:  # of the first call only
            numbers = (value for value in (*arguments, *named.values()) if isinstance(value, Tensor))
            tensors.extend(value.detach().cpu().flatten() for value in numbers if value.is_floating_point())

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        subject.run(subject.inputs(2, salt=salt))
    return torch.cat(tensors) if tensors else None
