"""Which optimizer moves which parameter."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from clearhead.config import TrainConfig
from clearhead.training.adamw import AdamW
from clearhead.training.muon import Muon
from clearhead.training.precision import has_bfloat16


class Optimizer(Protocol):
    """Moves parameters against their gradients. All that it remembers is in `moments`, tensors with names."""

    @property
    def kind(self) -> str:
        """What a checkpoint calls it, such as 'Muon+AdamW'."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """What it moves, by the model's names."""

    @property
    def moments(self) -> Mapping[str, Tensor]:
        """'<name of the parameter>.<what>' -> the tensor, changed in place by every step."""

    def step(self, rate: float) -> None:
        """Move every parameter that has a gradient, at this learning rate."""


class CombinedOptimizer:
    """Optimizers that share a model's parameters between them and step as one, at one rate."""

    def __init__(self, *members: Optimizer) -> None:
        self.members = members
        self.kind = "+".join(member.kind for member in members)
        self.parameters = {name: p for member in members for name, p in member.parameters.items()}
        self.moments = {name: tensor for member in members for name, tensor in member.moments.items()}
        assert len(self.parameters) == sum(len(member.parameters) for member in members), "moved twice"

    def step(self, rate: float) -> None:
        for member in self.members:
            member.step(rate)


def build_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """AdamW for every parameter, or Muon for the hidden matrices and AdamW for the rest.

    `beta1` is AdamW's first moment and Muon's momentum alike. Matrices decay, vectors (norms, biases) do not.
    """
    learnt = {name: p for name, p in model.named_parameters() if p.requires_grad}
    hidden = hidden_matrices(model) if config.optimizer == "muon" else {}
    rest = {name: p for name, p in learnt.items() if name not in hidden}
    adamw = AdamW(rest, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay, epsilon=config.adam_eps)
    if not hidden:
        return adamw
    has_hardware = all(has_bfloat16(p.device) for p in hidden.values())
    precision = torch.bfloat16 if has_hardware else torch.float32
    muon = Muon(hidden, momentum=config.beta1, weight_decay=config.weight_decay, precision=precision)
    return CombinedOptimizer(muon, adamw)


def hidden_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The matrices inside the repeated blocks: 2-D, beneath an `nn.ModuleList`, and no embedding, tied or not.

    Embeddings and heads are tables of vectors rather than maps; Muon's authors leave them to AdamW.
    """
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    in_blocks = {id(p) for blocks in lists for p in blocks.parameters() if p.ndim == 2 and p.requires_grad}
    return {name: p for name, p in model.named_parameters() if id(p) in in_blocks - tables}
