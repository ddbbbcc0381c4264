"""Whether weights are newly drawn or trained, as far as they show it themselves."""

import torch
from torch import Tensor, nn

from clearhead.doctor.instruments.norms import is_leaf_norm


def freshness(model: nn.Module, declared: bool | None = None) -> tuple[bool | None, str]:
    """Whether the weights are newly drawn, declared or by themselves, and what tells so; None where nothing does.

    Norms begin as constants, and the first step of any optimizer ends that. Where there are none, biases tell it that
    are all constant: some libraries draw them, so that others say nothing.
    """
    if declared is not None:
        return declared, "declared" if declared else "its weights are trained"
    counted = next((name for name, buffer in model.named_buffers() if _has_counted(name, buffer)), None)
    if counted is not None:
        return False, f"{counted} has counted batches"
    learn = {id(p): name for name, p in model.named_parameters() if p.requires_grad and p.numel() > 1}
    norms = [p for m in model.modules() if is_leaf_norm(m) for p in m.parameters() if id(p) in learn]
    moved = next((learn[id(p)] for p in norms if not _is_constant(p)), None)
    if moved is not None:
        return False, f"{moved} is not constant any more"
    if norms:
        return True, "no norm has learned anything"
    biases = [p for p in model.parameters() if id(p) in learn and p.dim() == 1]
    if biases and all(_is_constant(p) for p in biases):
        return True, "no bias has learned anything"
    return None, "nothing shows whether its weights are newly drawn"


def _has_counted(name: str, buffer: Tensor) -> bool:
    return name.rpartition(".")[2] == "num_batches_tracked" and bool((buffer > 0).any())


def _is_constant(parameter: Tensor) -> bool:
    values = parameter.detach().flatten()
    return bool(torch.equal(values, values[:1].expand_as(values)))
