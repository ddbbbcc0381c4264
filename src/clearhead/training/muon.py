"""Muon: momentum whose every step is orthogonalized, for the matrices inside a network (Jordan et al. 2024).

The update of a matrix G with singular vectors U S V^T is close to U V^T: every direction moves equally far. The same
arithmetic as `torch.optim.Muon`, with two differences that matter on small models: matrices of one shape are
orthogonalized together, and in float32 where the processor has no bfloat16 of its own.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from clearhead.training.processes import Processes
from clearhead.training.sharding import is_shared_out, shard_of, share_of, whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of a quintic steep at zero: singular values end in about 0.7..1.2
EPSILON = 1e-7


def orthogonalize(matrices: Tensor, *, iterations: int = 5) -> Tensor:
    """Newton-Schulz iterations: X <- aX + (bA + cA^2)X with A = X X^T, in the type of `matrices`; (N, R, C), R <= C."""
    a, b, c = COEFFICIENTS
    norms: Tensor = torch.linalg.matrix_norm(matrices, keepdim=True)  # (N, 1, 1)
    x = matrices / norms.clamp(min=EPSILON)  # spectral norm at most 1
    for _ in range(iterations):
        gram = x @ x.mT  # (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def rms_scale(shape: tuple[int, ...]) -> float:
    """0.2 sqrt(max(rows, columns)): gives the update AdamW's usual size, so both share one rate (arXiv 2502.16982)."""
    return 0.2 * math.sqrt(max(shape))


class Muon:
    """Momentum, Nesterov's look-ahead, orthogonalization, decoupled decay. For 2-D parameters only."""

    kind = "Muon"

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        precision: torch.dtype = torch.float32,
    ) -> None:
        """`precision` is the type in which the iterations are computed."""
        assert all(p.ndim == 2 for p in parameters.values()), "Muon moves matrices"
        self.parameters = dict(parameters)
        self.momentum, self.weight_decay, self.precision = momentum, weight_decay, precision
        self.state = {f"{name}.momentum": torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}

    def init_state(self, names: Collection[str]) -> None:
        """All state exists from the start."""

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update every matrix that has a gradient."""
        moved = {name: p for name, p in self.parameters.items() if p.grad is not None}
        if not moved:
            return
        group = Processes.joined()  # each orthogonalizes its share of the matrices
        matrices: list[Tensor] = list(moved.values())
        gradients = [p.grad for p in matrices if p.grad is not None]
        means = [self.state[f"{name}.momentum"] for name in moved]
        torch._foreach_lerp_(means, gradients, 1 - self.momentum)
        ahead = torch._foreach_lerp(gradients, means, self.momentum)
        torch._foreach_mul_(matrices, 1 - rate * self.weight_decay)
        for members in _by_shape(matrices, group.world_size):
            wide = torch.stack([_wide(whole(ahead[i])) for i in members]).to(self.precision)  # (N, R, C)
            updates = group.divide(orthogonalize, wide).to(matrices[members[0]].dtype)
            alike = [matrices[i] for i in members]
            turned = [update.mT if _is_tall(m) else update for m, update in zip(alike, updates, strict=True)]
            own = [share_of(update, m) for m, update in zip(alike, turned, strict=True)]
            torch._foreach_add_([shard_of(m) for m in alike], own, alpha=-rate * rms_scale(tuple(updates.shape[1:])))


def _is_tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if _is_tall(matrix) else matrix


def _by_shape(matrices: Sequence[Tensor], world_size: int) -> list[list[int]]:
    """Indices of the matrices whose wide forms have one shape and type, so that one product serves them all.

    Of matrices that processes share out, no more than one for each process, because in here they are whole.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, matrix in enumerate(matrices):
        groups.setdefault((_wide(matrix).shape, matrix.dtype, matrix.device), []).append(i)
    most = world_size if is_shared_out(matrices[0]) else len(matrices)
    return [members[start : start + most] for members in groups.values() for start in range(0, len(members), most)]
