"""Clearhead: Transformers you can see through.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ROOM_OF = {
    "BigramLM": "models",
    "ClearheadError": "errors",
    "DataConfig": "config",
    "DecoderLM": "models",
    "ModelConfig": "config",
    "PRESETS": "presets",
    "Run": "workflows",
    "RunConfig": "config",
    "SamplingConfig": "config",
    "TrainConfig": "config",
    "build": "models",
    "describe": "workflows",
    "evaluate": "workflows",
    "fit": "training",
    "generate": "workflows",
    "open_run": "workflows",
    "padded_positions": "parts",
    "resume": "workflows",
    "train": "workflows",
}
_ROOMS = {"config", "data", "doctor", "exchange", "inference", "inspection", "models", "parts", "training", "workflows"}

__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"clearhead.{name}")
    if name in _ROOM_OF:
        return getattr(import_module(f"clearhead.{_ROOM_OF[name]}"), name)
    raise AttributeError(f"module 'clearhead' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, *sorted(_ROOMS)]
