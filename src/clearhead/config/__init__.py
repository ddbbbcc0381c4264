"""Every option of the library, once: its type, default, bounds and one line of help.

The command's flags, the TOML file and the JSON schema all derive from these frozen models. Imports no torch.
"""

from clearhead.config.data import DataConfig
from clearhead.config.generation import (
    Dtype,
    EngineConfig,
    FillConfig,
    GenerationConfig,
    SamplingConfig,
    TranslationConfig,
)
from clearhead.config.model import GATED, ModelConfig
from clearhead.config.presets import PRESETS
from clearhead.config.run import OBJECTIVES, RunConfig
from clearhead.config.training import TrainConfig

__all__ = [
    "GATED",
    "OBJECTIVES",
    "PRESETS",
    "DataConfig",
    "Dtype",
    "EngineConfig",
    "FillConfig",
    "GenerationConfig",
    "ModelConfig",
    "RunConfig",
    "SamplingConfig",
    "TrainConfig",
    "TranslationConfig",
]
