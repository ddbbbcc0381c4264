"""Clearhead: Transformers you can see through.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

TYPE_CHECKING = False  # typing takes a while to load, and until then the command hears no Ctrl-C
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is touched
    from typing import Any

    from clearhead.config import DataConfig as DataConfig
    from clearhead.config import ModelConfig as ModelConfig
    from clearhead.config import RunConfig as RunConfig
    from clearhead.config import SamplingConfig as SamplingConfig
    from clearhead.config import TrainConfig as TrainConfig
    from clearhead.config import TranslationConfig as TranslationConfig
    from clearhead.errors import ClearheadError as ClearheadError
    from clearhead.models import BigramLM as BigramLM
    from clearhead.models import DecoderLM as DecoderLM
    from clearhead.models import EncoderDecoder as EncoderDecoder
    from clearhead.models import EncoderLM as EncoderLM
    from clearhead.models import build as build
    from clearhead.parts import positions_from_lengths as positions_from_lengths
    from clearhead.presets import PRESETS as PRESETS
    from clearhead.training import fit as fit
    from clearhead.workflows import Run as Run
    from clearhead.workflows import describe as describe
    from clearhead.workflows import evaluate as evaluate
    from clearhead.workflows import examine as examine
    from clearhead.workflows import export as export
    from clearhead.workflows import fill as fill
    from clearhead.workflows import generate as generate
    from clearhead.workflows import import_model as import_model
    from clearhead.workflows import load as load
    from clearhead.workflows import resume as resume
    from clearhead.workflows import train as train
    from clearhead.workflows import translate as translate
    from clearhead.workflows import worked_example as worked_example

__version__ = "0.1.0"

_ROOM_OF = {
    "BigramLM": "models",
    "ClearheadError": "errors",
    "DataConfig": "config",
    "DecoderLM": "models",
    "EncoderDecoder": "models",
    "EncoderLM": "models",
    "ModelConfig": "config",
    "PRESETS": "presets",
    "Run": "workflows",
    "RunConfig": "config",
    "SamplingConfig": "config",
    "TrainConfig": "config",
    "TranslationConfig": "config",
    "build": "models",
    "describe": "workflows",
    "evaluate": "workflows",
    "examine": "workflows",
    "export": "workflows",
    "fill": "workflows",
    "fit": "training",
    "generate": "workflows",
    "import_model": "workflows",
    "load": "workflows",
    "positions_from_lengths": "parts",
    "resume": "workflows",
    "train": "workflows",
    "translate": "workflows",
    "worked_example": "workflows",
}
_ROOMS = {
    *("config", "data", "doctor", "exchange", "inference", "inspection", "models", "parts", "reference", "training"),
    "workflows",
}

__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"clearhead.{name}")
    if name in _ROOM_OF:
        return getattr(import_module(f"clearhead.{_ROOM_OF[name]}"), name)
    raise AttributeError(f"module 'clearhead' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, *sorted(_ROOMS)]
