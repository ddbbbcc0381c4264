"""Tensors of foreign files that nobody learned: some families store what could as well be computed."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from clearhead.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor  # which is loaded when numbers are asked for: shapes are told without


class Constant(NamedTuple):
    """One such tensor: what it must hold, and how far it may be from that.

    Args:
        shape: of it, for one model.
        make: its numbers.
        description: the same in words.
        tolerance: largest difference of a number.
    """

    shape: Callable[[ModelConfig], tuple[int, ...]]
    make: Callable[[ModelConfig], "Tensor"]
    description: str
    tolerance: float


def halves(width: int) -> list[int]:
    """Where to find each column of a row of sines, then cosines, in one where they alternate: 0, 2, ..., 1, 3, ..."""
    return [*range(0, width, 2), *range(1, width, 2)]


def _waves(config: ModelConfig) -> "Tensor":
    from clearhead.parts.positions import sinusoids

    return sinusoids(config.block_size, config.d_model, config.rope_theta)[:, halves(config.d_model)]


# Half a bfloat16's step at 1 is 0.002; other layouts and other wavelengths are off by 1 somewhere.
WAVES = Constant(
    lambda config: (config.block_size, config.d_model),
    _waves,
    "the sines of Vaswani et al. 2017, then their cosines",
    0.01,
)
