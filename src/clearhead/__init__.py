"""Clearhead: Transformers you can see through.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

import os

from clearhead.lazy import attach, provide

# OpenMP reads it when torch loads: a waiting thread yields soon. With the default, a busy neighbor makes a step 12
# times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is first touched
    from clearhead import config as config
    from clearhead import data as data
    from clearhead import doctor as doctor
    from clearhead import inference as inference
    from clearhead import inspection as inspection
    from clearhead import interop as interop
    from clearhead import models as models
    from clearhead import native as native
    from clearhead import parts as parts
    from clearhead import reference as reference
    from clearhead import training as training
    from clearhead import workflows as workflows
    from clearhead.config import PRESETS as PRESETS
    from clearhead.config import DataConfig as DataConfig
    from clearhead.config import ModelConfig as ModelConfig
    from clearhead.config import RunConfig as RunConfig
    from clearhead.config import SamplingConfig as SamplingConfig
    from clearhead.config import TrainConfig as TrainConfig
    from clearhead.config import TranslationConfig as TranslationConfig
    from clearhead.errors import ClearheadError as ClearheadError
    from clearhead.inference import generate_ids as generate_ids
    from clearhead.inspection import intervene as intervene
    from clearhead.inspection import record as record
    from clearhead.models import BigramLM as BigramLM
    from clearhead.models import DecoderLM as DecoderLM
    from clearhead.models import EncoderDecoder as EncoderDecoder
    from clearhead.models import EncoderLM as EncoderLM
    from clearhead.models import build_model as build_model
    from clearhead.parts import positions_from_lengths as positions_from_lengths
    from clearhead.training import fit as fit
    from clearhead.workflows import Run as Run
    from clearhead.workflows import ablate as ablate
    from clearhead.workflows import chat as chat
    from clearhead.workflows import compare_runs as compare_runs
    from clearhead.workflows import describe as describe
    from clearhead.workflows import evaluate as evaluate
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

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "config": (
            "PRESETS",
            "DataConfig",
            "ModelConfig",
            "RunConfig",
            "SamplingConfig",
            "TrainConfig",
            "TranslationConfig",
        ),
        "errors": ("ClearheadError",),
        "inference": ("generate_ids",),
        "inspection": ("intervene", "record"),
        "models": ("BigramLM", "DecoderLM", "EncoderDecoder", "EncoderLM", "build_model"),
        "parts": ("positions_from_lengths",),
        "training": ("fit",),
        "workflows": (
            "Run",
            "ablate",
            "compare_runs",
            "describe",
            "evaluate",
            "export",
            "fill",
            "chat",
            "generate",
            "import_model",
            "load",
            "resume",
            "train",
            "translate",
            "worked_example",
        ),
    },
    submodules=(
        "config",
        "data",
        "doctor",
        "interop",
        "inference",
        "inspection",
        "models",
        "native",
        "parts",
        "reference",
        "training",
        "workflows",
    ),
)

provide(generate_ids="clearhead.inference")  # for `model.generate`: models know nothing of how they are used
