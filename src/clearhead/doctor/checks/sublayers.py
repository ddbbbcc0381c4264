"""Residual connections that are missing, and feed-forwards that are only a matrix."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import finding
from clearhead.doctor.checks.causes import is_norm
from clearhead.doctor.instruments.tracing import home_of
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding, Where


def residuals(patient: Patient) -> list[Finding]:
    """With every sublayer silent, a token still reaches its own logits: the residual stream carries it."""
    model = patient.model
    stacks = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and _sublayers(name, m)]
    stacks = [(name, m) for name, m in stacks if not any(name.startswith(other + ".") for other, _ in stacks)]
    for name, stack in stacks:
        sublayers = _sublayers(name, stack)
        parts = [module for _, module in sublayers]
        before = _reaches(patient)
        if not any(before) or not _lost(before, _silenced(patient, parts)):
            continue
        guilty = [(path, module) for path, module in sublayers if _lost(before, _silenced(patient, [module]))]
        if not guilty or len(guilty) == len(sublayers):
            continue  # nothing to compare with: it may be meant so
        path = guilty[0][0]
        owner = path.rpartition(".")[0]
        file, line = home_of(model.get_submodule(owner))
        witness = f"with the weights of {path} at zero, another token no longer moves its own logits"
        where = Where(owner, type(model.get_submodule(owner)).__name__, file, line)
        return [finding("N04", witness, value=0.0, where=where)]
    return []


def _sublayers(name: str, stack: nn.ModuleList) -> list[tuple[str, nn.Module]]:
    """The direct children of a stack's layers that hold matrices."""
    if len({type(layer) for layer in stack}) != 1:
        return []
    return [
        (f"{name}.{number}.{child_name}", child)
        for number, layer in enumerate(stack)
        for child_name, child in layer.named_children()
        if not is_norm(child) and any(p.dim() > 1 for p in child.parameters())
    ]


def _reaches(patient: Patient) -> tuple[bool, bool]:
    """Whether a token moves its own logits, and whether the source moves any."""
    inputs = patient.inputs(2, salt=14)
    other = patient.inputs(2, salt=15)
    t = patient.found.T // 2
    ids = inputs.ids.clone()
    ids[:, t] = torch.where(other.ids[:, t] == ids[:, t], other.ids[:, t - 1], other.ids[:, t])
    with torch.no_grad(), patient.quiet():
        base = patient.run(inputs)
        scale = 1e-6 * float(base.abs().max())
        own = float((patient.run(replace(inputs, ids=ids)) - base)[:, t].abs().max()) > scale
        if inputs.source is None:
            return own, False
        return own, float((patient.run(replace(inputs, source=other.source)) - base).abs().max()) > scale


def _silenced(patient: Patient, modules: Iterable[nn.Module]) -> tuple[bool, bool]:
    with _silent(modules):
        return _reaches(patient)


def _lost(before: tuple[bool, bool], after: tuple[bool, bool]) -> bool:
    return before[0] and not after[0]


@contextmanager
def _silent(modules: Iterable[nn.Module]) -> Iterator[None]:
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


def activations(patient: Patient) -> list[Finding]:
    """No linear map reads what another wrote after widening it: the two would be one."""
    written: dict[int, tuple[str, Tensor, nn.Module]] = {}
    chains: list[tuple[str, str, nn.Module]] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            if not given or not isinstance(given[0], Tensor) or not isinstance(output, Tensor):
                return
            source = written.get(given[0].data_ptr())
            if source is not None and source[1].shape == given[0].shape and torch.equal(source[1], given[0]):
                first = source[2]
                assert isinstance(first, nn.Linear)
                assert isinstance(module, nn.Linear)
                if first.out_features > first.in_features and module.out_features < module.in_features:
                    chains.append((source[0], name, module))
            written[output.data_ptr()] = (name, output, module)  # kept alive, so that no address is used twice

        return hook

    handles = [m.register_forward_hook(look(n)) for n, m in patient.model.named_modules() if type(m) is nn.Linear]
    try:
        with torch.no_grad():
            patient.run(patient.inputs(2))
    finally:
        for handle in handles:
            handle.remove()
    if not chains:
        return []
    first, second, _ = chains[0]
    owner = first.rpartition(".")[0]
    module = patient.model.get_submodule(owner)
    where = Where(owner, type(module).__name__, *home_of(module))
    return [finding("F01", f"{second} reads what {first} wrote, bit for bit", where=where)]
