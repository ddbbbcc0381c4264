"""AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101): torch's arithmetic, with named moments.

Constructing a `torch.optim.Optimizer` imports torch's compiler, which takes seconds; the functional form does not.
"""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from clearhead.training.sharding import shard_of


class AdamW:
    """Adam with decoupled weight decay, on matrices only: norms and biases do not decay."""

    kind = "AdamW"

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
        eps: float = 1e-8,
    ) -> None:
        self.parameters = dict(parameters)
        self.betas, self.weight_decay, self.eps = betas, weight_decay, eps
        self.fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in self.parameters.values())
        self.state: dict[str, Tensor] = {}
        for name, p in self.parameters.items():
            self.state[f"{name}.mean"] = torch.zeros_like(p, requires_grad=False)
            self.state[f"{name}.square"] = torch.zeros_like(p, requires_grad=False)
            self.state[f"{name}.step"] = torch.zeros((), device=p.device if self.fused else "cpu")

    def init_state(self, names: Collection[str]) -> None:
        """All state exists from the start."""

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update every parameter that has a gradient."""
        for decays in (True, False):
            moved = {n: p for n, p in self.parameters.items() if p.grad is not None and (p.ndim >= 2) == decays}
            if moved:
                self._move(moved, rate, self.weight_decay if decays else 0.0)

    def _move(self, moved: Mapping[str, nn.Parameter], rate: float, weight_decay: float) -> None:
        adamw(
            [shard_of(p) for p in moved.values()],
            [shard_of(p.grad) for p in moved.values() if p.grad is not None],
            [shard_of(self.state[f"{name}.mean"]) for name in moved],
            [shard_of(self.state[f"{name}.square"]) for name in moved],
            [],
            [self.state[f"{name}.step"] for name in moved],
            fused=self.fused or None,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=rate,
            weight_decay=weight_decay,
            eps=self.eps,
            maximize=False,
        )
