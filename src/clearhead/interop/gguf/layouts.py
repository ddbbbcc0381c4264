"""Which families a GGUF file can hold, and what transformers' reader of GGUF does not read of them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

from clearhead.config import ModelConfig
from clearhead.config.presets import PRESETS
from clearhead.errors import UsageError
from clearhead.interop.hf.families import FAMILIES
from clearhead.interop.hf.family import Family


class Layout(NamedTuple):
    """How GGUF holds a family.

    Args:
        needs: options of the family that GGUF's readers do not ask for, and the values that they take for granted.
        neighbors: rotary positions turn the pairs (0, 1), (2, 3)... of a head, where ours are (i, i + K/2).
        assumed: options that the file tells and transformers' reader skips -> the value that it takes instead.
    """

    needs: Mapping[str, object] = {}
    neighbors: bool = False
    assumed: Mapping[str, Callable[[ModelConfig], int]] = {}


LAYOUTS: dict[str, Layout] = {
    "gpt2": Layout(
        needs={"feedforward": "gelu_tanh"},
        assumed={"block_size": lambda config: 1024, "d_ff": lambda config: 4 * config.d_model},
    ),
    "llama": Layout(needs={"bias": False, "qkv_bias": False}, neighbors=True),
    "qwen2": Layout(),
    "qwen3": Layout(assumed={"head_dim": lambda config: 128}),
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
            if not (reasons := narrower.obstacles(config)):
                return family, layout
            obstacles.append(reasons)
    nearest = min(obstacles, key=len)
    raise UsageError(f"GGUF cannot hold this model: {' and '.join(nearest)}; export it to onnx or hf")


def unread_options(config: ModelConfig) -> dict[str, int]:
    """The options that transformers' reader would get wrong, with the values that it takes; llama.cpp reads them."""
    assumed = {option: value(config) for option, value in layout_of(config)[1].assumed.items()}
    return {option: value for option, value in assumed.items() if getattr(config, option) != value}


def unread_settings(config: ModelConfig) -> dict[str, int]:
    """The same options under the reader's own keys, with the model's values."""
    family = layout_of(config)[0]
    keys = {option: family.options[option] for option in unread_options(config)}
    return {key: getattr(config, option) for option, key in keys.items() if isinstance(key, str)}


def reader_advice(config: ModelConfig) -> str:
    """What stands between the model and transformers' reader, and what would not; empty where nothing is known."""
    unread = unread_options(config)
    if not unread:
        return ""
    assumed = " and ".join(f"{option} = {value}" for option, value in unread.items())
    options = " and ".join(f"model.{option} = {value}" for option, value in unread.items())
    presets = " or ".join(_readable_presets())
    return (
        f"its reader of GGUF assumes {assumed}, whatever the file says; llama.cpp reads what the file says, and both "
        f"read a model trained with {options}, or with the preset {presets}"
    )


def _readable_presets() -> list[str]:
    """The presets of which transformers' reader reads every option."""
    readable = []
    for name, preset in PRESETS.items():
        try:
            if not unread_options(ModelConfig.read(preset.model)):
                readable.append(name)
        except UsageError:
            continue
    return readable
