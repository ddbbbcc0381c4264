"""Products of one row with a matrix, as fast as the matrix can be read.

One row meets each weight once, so reading the weights is what takes the time. They lie in blocks of 16 outputs, as many
as a register holds, so that nothing needs a sum across a register.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from clearhead.config import Weights
from clearhead.inference.rounding import LinearMaps, narrowed

BLOCK = 16  # outputs


class Packed(nn.Module):
    """A matrix (N, K) in blocks (N', K, 16), N' being N / 16 rounded up; as narrow as `weights` says."""

    def __init__(self, matrix: Tensor, weights: Weights) -> None:
        super().__init__()
        self.outputs, K = matrix.shape
        numbers, scales = narrowed(F.pad(matrix.detach(), (0, 0, 0, -self.outputs % BLOCK)), weights)  # (16 N', K)
        blocks = numbers.view(-1, BLOCK, K).transpose(1, 2).contiguous()  # (16 N', K) -> (N', 16, K) -> (N', K, 16)
        self.register_buffer("blocks", blocks, persistent=False)
        self.register_buffer("scales", None if scales is None else scales.flatten(), persistent=False)  # (16 N',)
        self.blocks: Tensor
        self.scales: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """The products of one row, (..., K) -> (..., N), every axis but the last of length 1."""
        products = (self.blocks.to(x.dtype) * x.reshape(-1, 1)).sum(1).flatten()  # (N', K, 16) -> (N', 16) -> (16 N',)
        if self.scales is not None:
            products = products * self.scales
        return products[: self.outputs].view(*x.shape[:-1], self.outputs)


class Products(LinearMaps):
    """Inside the `with`, linear maps multiply with what is packed in place of their matrices."""

    def __init__(self, packed: Mapping[Tensor, nn.Module]) -> None:
        super().__init__()
        self.packed = packed

    def linear(self, x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
        if matrix not in self.packed:
            return F.linear(x, matrix, bias)
        products: Tensor = self.packed[matrix](x)
        return products if bias is None else products + bias
