"""Whether weights are newly drawn or trained, as far as they show it themselves."""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from clearhead.doctor.probes.locations import layer_of
from clearhead.doctor.probes.norms import is_leaf_norm


def freshness(model: nn.Module, declared: bool | None = None) -> tuple[bool | None, str]:
    """Whether the weights are newly drawn, declared or by themselves, and what tells so; None where nothing does.

    Norms begin as constants, and the first step of any optimizer ends that. Where there are none, biases tell it that
    are all constant: some libraries draw them, so that others say nothing. What is constant speaks for the layer that
    it stands in: a new head says nothing of the body below it. Whether weights are frozen does not matter.
    """
    if declared is not None:
        return declared, "declared" if declared else "its weights are trained"
    counted = next((name for name, buffer in model.named_buffers() if _has_counted(name, buffer)), None)
    if counted is not None:
        return False, f"{counted} has counted batches"
    in_norms = {id(p) for module in model.modules() if is_leaf_norm(module) for p in module.parameters()}
    vectors = {name: p for name, p in model.named_parameters() if p.numel() > 1 and (p.dim() == 1 or id(p) in in_norms)}
    constant = [name for name, parameter in vectors.items() if _is_constant(parameter)]
    norms = [name for name, parameter in vectors.items() if id(parameter) in in_norms]
    moved = next((name for name in norms if name not in constant), None)
    if moved is not None:
        return False, f"{moved} is not constant any more"
    if not norms and (not vectors or len(constant) < len(vectors)):
        return None, "nothing shows whether its weights are newly drawn"
    if not _speak_for_most_layers(model, constant):
        return None, "nothing shows whether most of the weights in its layers are newly drawn"
    return True, "no norm has learned anything" if norms else "no bias has learned anything"


def _speak_for_most_layers(model: nn.Module, names: Iterable[str]) -> bool:
    """Whether these parameters stand in layers that hold half the weights of all layers, or in a list of their own."""
    weights: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        layer = layer_of(name)
        if layer is not None and parameter.dim() > 1:
            weights[layer] += parameter.numel()
    owners = {name.rpartition(".")[0] for name in names}
    layers = {layer for owner in owners if (layer := layer_of(owner))}
    if layers & owners:
        return True  # norms in a list beside that of the layers
    return 2 * sum(weights[layer] for layer in layers) >= weights.total()


def _has_counted(name: str, buffer: Tensor) -> bool:
    return name.rpartition(".")[2] == "num_batches_tracked" and bool((buffer > 0).any())


def _is_constant(parameter: Tensor) -> bool:
    values = parameter.detach().flatten()
    return bool(torch.equal(values, values[:1].expand_as(values)))
