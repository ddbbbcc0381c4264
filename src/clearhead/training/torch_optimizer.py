"""Any class of `torch.optim`, by its name, with moments that have names: its state is saved and resumed exactly."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.config import TrainConfig
from clearhead.errors import UsageError


def torch_classes() -> dict[str, type[torch.optim.Optimizer]]:
    """Every optimizer of torch, by its name in lower case."""
    classes = [value for value in vars(torch.optim).values() if isinstance(value, type)]
    return {kind.__name__.lower(): kind for kind in classes if issubclass(kind, torch.optim.Optimizer)}


class TorchOptimizer:
    """Wraps a class of `torch.optim`; matrices decay, vectors do not.

    The state of a parameter is made at its first step, as torch does, so `state` is empty before.
    """

    def __init__(
        self, kind: type[torch.optim.Optimizer], parameters: Mapping[str, nn.Parameter], config: TrainConfig
    ) -> None:
        """
        Args:
            kind: the class; it gets those of lr, weight_decay, betas, momentum (beta1) and eps that it takes.
            parameters: the parameters to update.
            config: the values of these options.

        Raises:
            UsageError: the class refuses these values, or its steps need more than gradients.
        """
        self.kind, self.parameters = kind.__name__, dict(parameters)
        known = inspect.signature(kind).parameters
        options: dict[str, Any] = {  # each optimizer has its own
            "lr": config.learning_rate,
            "weight_decay": config.weight_decay,
            "betas": (config.beta1, config.beta2),
            "momentum": config.beta1,
        }
        if "eps" in known and isinstance(known["eps"].default, float):  # Adafactor's is a pair and means something else
            options["eps"] = config.adam_eps
        self._class, self._options = kind, {name: value for name, value in options.items() if name in known}
        groups: list[dict[str, object]] = [{"params": [p for p in self.parameters.values() if p.ndim >= 2]}]
        groups.append({"params": [p for p in self.parameters.values() if p.ndim < 2]})
        if "weight_decay" in known:
            groups[1]["weight_decay"] = 0.0
        try:
            self._optimizer = kind([group for group in groups if group["params"]], **self._options)
            self._first_state(torch.zeros(2, 2))  # some need more than a gradient, or another kind of it
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"torch.optim.{self.kind} cannot train this model: {error}; choose another") from None

    @property
    def state(self) -> Mapping[str, Tensor]:
        """'<name of the parameter>.<what>' -> the tensor, of the parameters that have been moved."""
        return dict(self._tensors())

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, p in self.parameters.items():
            state = self._optimizer.state.get(p, {})
            yield from ((f"{name}.{key}", value) for key, value in state.items() if isinstance(value, Tensor))

    def init_state(self, names: Collection[str]) -> None:
        """Create missing state, a parameter at a time and without touching it."""
        missing = {name.rpartition(".")[0] for name in set(names) - self.state.keys()}
        for name in missing & self.parameters.keys():
            p = self.parameters[name]
            self._optimizer.state[p] = self._first_state(p)

    def _first_state(self, like: Tensor) -> dict[str, Any]:
        """What the class keeps of such a parameter after its first step."""
        other = nn.Parameter(torch.zeros_like(like))
        other.grad = torch.zeros_like(other)
        optimizer = self._class([other], **self._options)
        optimizer.step()
        state: dict[str, Any] = optimizer.state[other]
        return state

    def step(self, rate: float) -> None:
        """Move every parameter that has a gradient."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
