"""Tensors of foreign files that nobody learned: some families store what could as well be computed."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.parts.positions import sinusoids


class Fixed(NamedTuple):
    """One such tensor: what it must hold, and how far it may be from that.

    Args:
        make: its numbers for one model.
        told: the same in words.
        tolerance: largest difference of a number.
    """

    make: Callable[[ModelConfig], Tensor]
    told: str
    tolerance: float


def halves(width: int) -> Tensor:
    """Where to find each column of a row of sines, then cosines, in one where they alternate: 0, 2, ..., 1, 3, ..."""
    return torch.arange(width).view(-1, 2).T.flatten()  # (D/2, 2) -> (2, D/2) -> (D,)


def _waves(config: ModelConfig) -> Tensor:
    return sinusoids(config.block_size, config.d_model, config.rope_base)[:, halves(config.d_model)]


# Half a bfloat16's step at 1 is 0.002; other layouts and other wavelengths are off by 1 somewhere.
WAVES = Fixed(_waves, "the sines of Vaswani et al. 2017, then their cosines", 0.01)
