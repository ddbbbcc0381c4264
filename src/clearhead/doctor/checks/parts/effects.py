"""Whether numbers that a model holds have any effect, and whose they are."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from clearhead.doctor.instruments.tracing import home_of, without_dropout
from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Where


def moves(patient: Patient, tensors: Iterable[Tensor]) -> bool:
    """Whether other numbers in these parameters or buffers of the shaken copy move any logit."""
    inputs = patient.inputs(3)
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors if tensor.is_floating_point()]
    with torch.no_grad(), without_dropout():
        before = patient.convention.logits(patient.model, inputs)
        try:
            for salt, (tensor, _) in enumerate(kept):
                noise = torch.randn(tensor.shape, generator=patient.generator(9 + 100 * salt)).to(tensor)
                tensor.add_(0.3 * noise)
            after = patient.convention.logits(patient.model, inputs)
        finally:
            for tensor, values in kept:
                tensor.copy_(values)
    return float((after - before).abs().max()) > 1e-5 * float(before.abs().max())


def owner_of(model: nn.Module, name: str, *, own_code: bool = False) -> Where:
    """The module of a parameter or buffer; with `own_code`, the first around it that is not torch's."""
    path = name.rpartition(".")[0]
    module = model.get_submodule(path)
    file, line = home_of(module)
    while file is None and path:
        path = path.rpartition(".")[0]
        file, line = home_of(model.get_submodule(path))
    if own_code:
        return Where(path, type(model.get_submodule(path)).__name__, file, line)
    return Where(name.rpartition(".")[0], type(module).__name__, file, line)


def idle_table(patient: Patient, named: Sequence[tuple[str, Tensor]]) -> str | None:
    """The first of these tensors that moves no logit."""
    return next((name for name, tensor in named if tensor.is_floating_point() and not moves(patient, [tensor])), None)
