"""Which optimizer moves which parameter, and an optimizer's memory as named tensors."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from clearhead.config import TrainConfig
from clearhead.errors import DataError
from clearhead.training.muon import Muon
from clearhead.training.precision import has_bfloat16


class Optimizers:
    """Optimizers that share a model's parameters between them and step as one, at one rate."""

    def __init__(self, *members: Optimizer) -> None:
        self.members = members

    @property
    def parameters(self) -> list[Tensor]:
        """Every parameter that is moved, in order; one that is listed twice here would be moved twice."""
        return [p for member in self.members for group in member.param_groups for p in group["params"]]

    @property
    def kind(self) -> str:
        """The members' names, such as 'Muon+AdamW'."""
        return "+".join(type(member).__name__ for member in self.members)

    def set_rate(self, rate: float) -> None:
        """Give every group the same learning rate."""
        for member in self.members:
            for group in member.param_groups:
                group["lr"] = rate

    def step(self) -> None:
        """Move the parameters against their gradients."""
        for member in self.members:
            member.step()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for member in self.members:
            member.zero_grad(set_to_none=True)


def build_optimizer(model: nn.Module, config: TrainConfig) -> Optimizers:
    """AdamW for every parameter, or Muon for the hidden matrices and AdamW for the rest.

    Matrices decay, vectors (norms, biases) do not. `beta1` is AdamW's first moment and Muon's momentum alike.
    """
    matrices = hidden_matrices(model) if config.optimizer == "muon" else []
    taken = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in taken]
    members: list[Optimizer] = []
    if matrices:
        precision = torch.bfloat16 if has_bfloat16(matrices[0].device) else torch.float32
        members.append(
            Muon(
                matrices,
                lr=config.learning_rate,
                momentum=config.beta1,
                weight_decay=config.weight_decay,
                precision=precision,
            )
        )
    if rest:
        members.append(_adamw(rest, config))
    return Optimizers(*members)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The matrices inside the repeated blocks: 2-D, beneath an `nn.ModuleList`, and no embedding, tied or not.

    Embeddings and heads are tables of vectors rather than maps; Muon's authors leave them to AdamW.
    """
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    found: dict[int, nn.Parameter] = {}
    for blocks in (m for m in model.modules() if isinstance(m, nn.ModuleList)):
        for p in blocks.parameters():
            if p.ndim == 2 and p.requires_grad and id(p) not in tables:
                found[id(p)] = p
    return list(found.values())


def _adamw(parameters: Iterable[nn.Parameter], config: TrainConfig) -> AdamW:
    split: dict[bool, list[nn.Parameter]] = defaultdict(list)
    for p in parameters:
        split[p.ndim >= 2].append(p)
    groups = [
        {"params": members, "weight_decay": config.weight_decay if decays else 0.0} for decays, members in split.items()
    ]
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for ps in split.values() for p in ps)
    return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=fused or None)


def optimizer_tensors(optimizer: Optimizers, model: nn.Module) -> dict[str, Tensor]:
    """Everything that the optimizer remembers, as '<parameter name>.<what>': no pickle is needed to keep it."""
    tensors: dict[str, Tensor] = {}
    for member in optimizer.members:
        for name, p in _names(member, model):
            tensors |= {f"{name}.{key}": value for key, value in member.state.get(p, {}).items()}
    return tensors


def load_optimizer_tensors(optimizer: Optimizers, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """The reverse of `optimizer_tensors`.

    Raises:
        DataError: a tensor belongs to no parameter, or has another shape than its parameter.
    """
    states: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition(".")
        states[name][key] = tensor
    for member in optimizer.members:
        remembered: dict[int, dict[str, Any]] = {}
        for index, (name, p) in enumerate(_names(member, model)):
            state = states.pop(name, {})
            for key, tensor in state.items():
                if tensor.ndim and tensor.shape != p.shape:
                    raise DataError(
                        f"the optimizer's {key} of {name} has shape {list(tensor.shape)}, the model has "
                        f"{list(p.shape)}: the checkpoint is of another architecture"
                    )
            if state:
                remembered[index] = state
        member.load_state_dict({"state": remembered, "param_groups": member.state_dict()["param_groups"]})
    if states:
        raise DataError(f"the optimizer's memory of {next(iter(states))} belongs to no parameter of this model")


def _names(member: Optimizer, model: nn.Module) -> list[tuple[str, Tensor]]:
    names = {id(p): name for name, p in model.named_parameters()}
    return [(names[id(p)], p) for group in member.param_groups for p in group["params"]]
