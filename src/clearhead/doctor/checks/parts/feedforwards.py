"""Feed-forwards that are only a matrix: what widens and what narrows again, with nothing curved between."""

from typing import Any

import torch
from torch import Tensor, nn

from clearhead.doctor.checks.base import finding
from clearhead.doctor.instruments.tracing import home_of
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Finding, Where

STRAIGHT = 1e-4  # of the largest number: a sum goes to the sum of what its parts go to


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
        return _straight(patient)
    first, second, _ = chains[0]
    owner = first.rpartition(".")[0]
    module = patient.model.get_submodule(owner)
    where = Where(owner, type(module).__name__, *home_of(module))
    return [finding("F01", f"{second} reads what {first} wrote, bit for bit", where=where)]


def _straight(patient: Patient) -> list[Finding]:
    """A module that widens and narrows its input, and takes sums to sums."""
    for name, module in patient.model.named_modules():
        width = _feedforward_width(module)
        if not width:
            continue
        one, other = (torch.randn(1, 2, width, generator=patient.generator(salt)) for salt in (20, 21))
        try:
            with patient.quiet():
                zero, first, second, both = (module(x) for x in (0 * one, one, other, one + other))
        except Exception:  # it wants more than one tensor
            continue
        if not isinstance(both, Tensor) or both.shape != one.shape:
            continue
        value = float((first + second - zero - both).abs().max()) / (float(both.abs().max()) or 1.0)
        if value < STRAIGHT:
            witness = f"{name} of a sum is the sum of what it makes of the parts, but for {value:.0e}"
            where = Where(name, type(module).__name__, *home_of(module))
            return [finding("F01", witness, value=value, threshold=STRAIGHT, where=where)]
    return []


def _feedforward_width(module: nn.Module) -> int:
    """The width of its input, where two of its own maps lead from there to more and back; else 0."""
    maps = [child for child in module.children() if isinstance(child, nn.Linear)]
    wide = {(m.in_features, m.out_features) for m in maps if m.out_features > m.in_features}
    back = {(m.out_features, m.in_features) for m in maps if m.out_features < m.in_features}
    both = wide & back
    others = [child for child in module.children() if not isinstance(child, nn.Linear)]
    mixes = any(True for child in others for p in child.parameters() if p.dim() > 1)
    # a low-rank pair narrows first: it is meant to be a matrix
    first_is_wide = bool(maps) and maps[0].out_features > maps[0].in_features
    return next(iter(both))[0] if len(both) == 1 and not mixes and (first_is_wide or len(maps) > 2) else 0
