"""Untrained buffers that older checkpoints contain and newer ones omit. They are not written; what they hold is
compared with what our parts compute, and then ignored."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from clearhead.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor  # which is loaded by who reads one


class Buffer(NamedTuple):
    """One such tensor.

    Args:
        shape: of it, for one model.
        holds: whether a tensor of that shape says what our parts compute.
        description: the same in words.
    """

    shape: Callable[[ModelConfig], tuple[int, ...]]
    holds: Callable[[ModelConfig, "Tensor"], bool]
    description: str


def find_buffers(buffers: Mapping[str, Buffer], names: Iterable[str]) -> dict[str, Buffer]:
    """Those of a file's tensors that are buffers; N in a buffer's name stands for the number of a block."""
    patterns = {name: re.sub(r"\.\d+\.", ".N.", name) for name in names}
    return {name: buffers[pattern] for name, pattern in patterns.items() if pattern in buffers}


def _is_causal(config: ModelConfig, mask: "Tensor") -> bool:
    return bool((mask.float() == mask.new_ones(mask.shape).tril().float()).all())


def _has_our_frequencies(config: ModelConfig, frequencies: "Tensor") -> bool:
    width = config.rotary_width
    expected = [config.rope_theta ** (-column / width) for column in range(0, width, 2)]
    there = zip(frequencies.tolist(), expected, strict=True)
    return all(math.isclose(*two, rel_tol=0.01, abs_tol=1e-6) for two in there)  # they may be of half precision


CAUSAL_MASK = Buffer(
    lambda config: (1, 1, config.block_size, config.block_size), _is_causal, "ones on and below the diagonal"
)
FORBIDDEN_SCORE = Buffer(lambda config: (), lambda config, score: bool(score < -9e3), "a number below -9,000")
FREQUENCIES = Buffer(
    lambda config: (config.rotary_width // 2,),
    _has_our_frequencies,
    "the frequencies of the rotary positions of the config",
)
