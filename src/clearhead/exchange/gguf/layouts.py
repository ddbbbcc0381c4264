"""Which families a GGUF file can hold, so that its readers compute what the model computes."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from clearhead.config import ModelConfig
from clearhead.errors import UsageError
from clearhead.exchange.families import FAMILIES
from clearhead.exchange.family import Family


class Layout(NamedTuple):
    """How GGUF holds a family.

    Args:
        needs: options of the family that GGUF's readers do not ask for, and the values that they take for granted.
        neighbours: rotary positions turn the pairs (0, 1), (2, 3)... of a head, where ours are (i, i + K/2).
        overlooked: keys of the file, less the family's name, that transformers does not read; its own names of them.
    """

    needs: Mapping[str, object] = {}
    neighbours: bool = False
    overlooked: Mapping[str, str] = {}


LAYOUTS: dict[str, Layout] = {
    "gpt2": Layout(
        needs={"feedforward": "gelu_tanh"},
        overlooked={"context_length": "n_positions", "feed_forward_length": "n_inner"},
    ),
    "llama": Layout(needs={"bias": False, "qkv_bias": False}, neighbours=True),
    "qwen2": Layout(),
    "qwen3": Layout(overlooked={"attention.key_length": "head_dim"}),
}


def layout_of(config: ModelConfig) -> tuple[Family, Layout]:
    """The first family that the config fits in and GGUF holds.

    Raises:
        UsageError: there is none; names the options that stand in the way to the nearest.
    """
    obstacles: list[list[str]] = []
    for name, layout in LAYOUTS.items():
        if name in FAMILIES:
            family = FAMILIES[name]
            narrower = dataclasses.replace(family, needs={**family.needs, **layout.needs})
            if not (found := narrower.obstacles(config)):
                return family, layout
            obstacles.append(found)
    nearest = min(obstacles, key=len)
    raise UsageError(f"GGUF holds no such model: {' and '.join(nearest)}; export it to onnx or hf")
