"""Normalization of the last axis. Affine, because every published model's is."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016, arXiv 1607.06450, equation 4)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019, arXiv 1910.07467, equation 4)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    @property
    def scale(self) -> Tensor:
        """The factor after normalization, (width,)."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)  # under autocast a projection is bfloat16, for which there is no fused kernel
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling():
            normalized: Tensor = FewPassRMSNorm.apply(x, self.scale, self.eps)  # type: ignore[no-untyped-call]
            return normalized
        return F.rms_norm(x, self.weight.shape, self.scale, self.eps)


class PlusOneRMSNorm(RMSNorm):
    """RMSNorm whose scale is 1 + weight, so that decay draws it to 1 (Gemma Team 2024, arXiv 2403.08295)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__(width, eps)
        nn.init.zeros_(self.weight)

    @property
    def scale(self) -> Tensor:
        return 1 + self.weight


class FewPassRMSNorm(torch.autograd.Function):
    """Faster `F.rms_norm` for CPUs, where torch has no fused kernel.

    With r = 1 / sqrt(mean(x^2) + eps), y = x r and g the gradient at y, the gradient at x is r (g - y mean(y g)).
    The layer norm's, which has a kernel, is r (g - mean(g) - y mean(y g)) for y = (x - mean) r: we call it with a mean
    of zero and give r mean(g) back.
    """

    # `Any`, because torch's type for `ctx` lacks the attributes that a function saves on it.
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        r = lengths.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # (..., 1)
        ctx.save_for_backward(x, scale, r)
        return (x * r).mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, scale, r = ctx.saved_tensors
        of_x, of_scale, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, scale.shape, torch.zeros_like(r), r, scale, None, [True, True, False]
        )
        means = (gradient * scale).mean(-1, keepdim=True)  # (..., 1); autocast would run a matmul in bfloat16
        of_x += means.mul_(r)
        return of_x, of_scale, None


NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layernorm": LayerNorm,
    "rmsnorm": RMSNorm,
    "rmsnorm_plus_one": PlusOneRMSNorm,
}
