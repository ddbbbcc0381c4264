"""Build the config's optimizer, and choose which one updates which parameter."""

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from clearhead.config import TrainConfig
from clearhead.errors import UsageError
from clearhead.suggestions import did_you_mean
from clearhead.training.adamw import AdamW
from clearhead.training.muon import Muon
from clearhead.training.precision import has_bfloat16
from clearhead.training.torch_optimizer import TorchOptimizer, torch_classes

Parameters = Mapping[str, nn.Parameter]


class Optimizer(Protocol):
    """Updates parameters from their gradients. All that it keeps is `state`, named tensors."""

    @property
    def kind(self) -> str:
        """Its name in checkpoints, such as 'Muon+AdamW'."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The parameters that it updates, by the model's names."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """'<name of the parameter>.<what>' -> the tensor, changed in place by every step."""

    def init_state(self, names: Collection[str]) -> None:
        """Create state of these names before it is loaded, where only a step would create them."""

    def step(self, rate: float) -> None:
        """Update every parameter that has a gradient, at this learning rate."""


class CombinedOptimizer:
    """Several optimizers as one: each updates its own parameters, at the same learning rate."""

    def __init__(self, *members: Optimizer) -> None:
        self.members = members
        self.kind = "+".join(member.kind for member in members)
        self.parameters = {name: p for member in members for name, p in member.parameters.items()}
        assert len(self.parameters) == sum(len(member.parameters) for member in members), (
            "two optimizers of one parameter"
        )

    @property
    def state(self) -> Mapping[str, Tensor]:
        return {name: tensor for member in self.members for name, tensor in member.state.items()}

    def init_state(self, names: Collection[str]) -> None:
        for member in self.members:
            member.init_state(names)

    def step(self, rate: float) -> None:
        for member in self.members:
            member.step(rate)


def build_optimizer(model: nn.Module, config: TrainConfig) -> Optimizer:
    """The config's optimizer for every trainable parameter: one of ours, or else a class of `torch.optim`.

    Raises:
        UsageError: there is none of that name, or it cannot update this model.
    """
    learned, name = {name: p for name, p in model.named_parameters() if p.requires_grad}, config.optimizer.lower()
    if name in OPTIMIZERS:
        return OPTIMIZERS[name](model, learned, config)
    return TorchOptimizer(_torch_class(config.optimizer), learned, config)


def check_optimizer(config: TrainConfig) -> None:
    """Refuse at once what `build_optimizer` would refuse for any model.

    Raises:
        UsageError: there is none of that name, or it needs more than gradients, or refuses the config's values.
    """
    if config.optimizer.lower() not in OPTIMIZERS:
        TorchOptimizer(_torch_class(config.optimizer), {"example": nn.Parameter(torch.zeros(2, 2))}, config)


def _torch_class(name: str) -> type[torch.optim.Optimizer]:
    classes = torch_classes()
    if name.lower() not in classes:
        close = did_you_mean(name.lower(), [*OPTIMIZERS, *classes])
        raise UsageError(
            f"there is no optimizer '{name}'{close or ';'} "
            f"`train.optimizer` takes {', '.join(OPTIMIZERS)} or the name of any class of torch.optim"
        )
    return classes[name.lower()]


def _adamw(model: nn.Module, learned: Parameters, config: TrainConfig) -> AdamW:
    """AdamW for every parameter. Matrices decay, vectors (norms, biases) do not."""
    betas = config.beta1, config.beta2
    return AdamW(learned, betas=betas, weight_decay=config.weight_decay, eps=config.adam_eps)


def _muon(model: nn.Module, learned: Parameters, config: TrainConfig) -> Optimizer:
    """Muon for the hidden matrices, with `beta1` as its momentum, and AdamW for the rest."""
    hidden = hidden_matrices(model)
    rest = _adamw(model, {name: p for name, p in learned.items() if name not in hidden}, config)
    if not hidden:
        return rest
    has_hardware = all(has_bfloat16(p.device) for p in hidden.values())
    precision = torch.bfloat16 if has_hardware else torch.float32
    muon = Muon(hidden, momentum=config.beta1, weight_decay=config.weight_decay, precision=precision)
    return CombinedOptimizer(muon, rest)


# Name -> builds it from a model, its trainable parameters, and the config.
OPTIMIZERS: dict[str, Callable[[nn.Module, Parameters, TrainConfig], Optimizer]] = {"adamw": _adamw, "muon": _muon}


def hidden_matrices(model: nn.Module) -> dict[str, nn.Parameter]:
    """The matrices inside the repeated blocks: 2-D, beneath an `nn.ModuleList`, and no embedding, tied or not.

    Embeddings and heads are tables of vectors rather than maps; Muon's authors leave them to AdamW.
    """
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    in_blocks = {id(p) for blocks in lists for p in blocks.parameters() if p.ndim == 2 and p.requires_grad}
    return {name: p for name, p in model.named_parameters() if id(p) in in_blocks - tables}
