"""Clearhead: Transformers you can see through.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_ROOM_OF = {
    "ModelConfig": "config",
    "RunConfig": "config",
    "SamplingConfig": "config",
    "TrainConfig": "config",
    "DataConfig": "config",
    "DecoderLM": "models",
    "BigramLM": "models",
    "build": "models",
    "padded_positions": "parts",
}

__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'clearhead' has no attribute '{name}'")
    return getattr(import_module(f"clearhead.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
