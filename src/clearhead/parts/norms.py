"""Normalisation of the last axis. Affine, because every published model's is."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias (Ba et al. 2016, arXiv 1607.06450, equation 4)."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight (Zhang & Sennrich 2019, arXiv 1910.07467, equation 4)."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)  # under autocast a projection is bfloat16, for which there is no fused kernel
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class PlusOneRMSNorm(RMSNorm):
    """RMSNorm whose scale is 1 + weight, so that decay draws it to 1 (Gemma Team 2024, arXiv 2403.08295)."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__(width, epsilon)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, 1 + self.weight, self.epsilon)


NORMS: dict[str, type[LayerNorm] | type[RMSNorm]] = {
    "layernorm": LayerNorm,
    "rmsnorm": RMSNorm,
    "rmsnorm_plus_one": PlusOneRMSNorm,
}
