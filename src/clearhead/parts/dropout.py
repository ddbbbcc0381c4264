"""Dropout that is free at probability 0, and fast on a CPU."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 1 << 16  # probabilities are multiples of one part in so many on a CPU


def make_dropout(probability: float) -> nn.Module:
    """Srivastava et al. 2014. A probability of zero gives an identity."""
    return Dropout(probability) if probability else nn.Identity()


class Dropout(nn.Dropout):
    """`nn.Dropout`; on a CPU with 16 random bits per element, four times as fast as torch's."""

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...), numbers set to zero with probability p, the others divided by 1 - p."""
        return drop(x, self.p) if self.training else x


def drop(x: Tensor, probability: float) -> Tensor:
    """(...) -> (...), numbers set to zero with this probability, the others divided by the rest of it."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return x * dropout_mask(x.shape, probability, x.dtype)
    return F.dropout(x, probability)


def dropout_mask(shape: torch.Size, probability: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """0 where a number is dropped and 1 / (1 - p) elsewhere; four decisions from each word of random bits.

    NumPy draws the words, twice as fast as torch, seeded from torch's generator.
    """
    dropped = min(round(probability * STEPS), STEPS - 1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    integers = np.random.SFC64(seed).random_raw(-(-shape.numel() // 4))
    bits = torch.from_numpy(integers.view(np.int16))[: shape.numel()].view(shape)  # uniform in -2^15 .. 2^15 - 1
    return bits.ge_(dropped - STEPS // 2).to(dtype).mul_(STEPS / (STEPS - dropped))
