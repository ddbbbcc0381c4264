"""Short compositions of parts."""

from clearhead.config import ModelConfig
from clearhead.models.bigram_lm import BigramLM
from clearhead.models.decoder_lm import DecoderLM
from clearhead.models.encoder_decoder import EncoderDecoder, Memory
from clearhead.models.encoder_lm import EncoderLM
from clearhead.models.evaluation import Evaluation
from clearhead.models.factory import make_attention, make_block, make_norm, make_positions, make_stack
from clearhead.models.initialization import initial_values, initialize
from clearhead.models.language_model import CausalLM, LanguageModel, rows_at_once

MODELS: dict[str, type[DecoderLM] | type[BigramLM] | type[EncoderLM] | type[EncoderDecoder]] = {
    "decoder": DecoderLM,
    "bigram": BigramLM,
    "encoder": EncoderLM,
    "encoder_decoder": EncoderDecoder,
}


def build_model(config: ModelConfig, *, seed: int = 0) -> LanguageModel:
    """The model that the config describes, freshly initialized from the seed."""
    return MODELS[config.architecture](config, seed=seed)


__all__ = [
    "MODELS",
    "BigramLM",
    "CausalLM",
    "DecoderLM",
    "EncoderDecoder",
    "EncoderLM",
    "Evaluation",
    "LanguageModel",
    "Memory",
    "build_model",
    "initial_values",
    "initialize",
    "make_attention",
    "make_block",
    "make_norm",
    "make_positions",
    "make_stack",
    "rows_at_once",
]
