"""Compiled code for a model: where it is known how, where it pays, and whether it computes what the model does."""

import ctypes

import torch
from torch import Tensor

from clearhead.models import DecoderLM, EncoderDecoder
from clearhead.models.eval_mode import Notice, hooked
from clearhead.native.building import CPP_TYPES, compiler, library
from clearhead.native.structures import UnknownPartError

BUILDING, LOADING = 3.0, 0.02  # seconds that compiled code costs before its first token, made anew or kept
PACKING = 5e8  # bytes of weights that are brought into its order in a second
CALL = 1.5e-4  # seconds that a block takes at least, call by call; what is around the blocks takes as much as two
TOLERANCE = 1e-3  # of the largest number
# The options of a model that native code computes; any other must be at its default.
UNDERSTOOD = {
    *("architecture", "vocab_size", "source_vocab_size", "pad_id", "block_size", "n_layers", "n_encoder_layers"),
    *("n_heads", "n_kv_heads", "d_model", "head_dim", "norm", "norm_position", "norm_eps", "embedding_norm"),
    *("parallel_residual", "feedforward", "d_ff", "positions", "rope_theta", "partial_rotary_factor"),
    *("relative_buckets", "relative_max_distance", "qk_norm", "scale_attention", "bias", "qkv_bias", "sliding_window"),
    *("tie_embeddings", "scale_embedding", "scale_logits", "head_transform", "head_bias", "embedding_ngrams"),
    *("logit_ngrams", "ngram_rows", "decoder_start_id"),
}


def code_for(model: DecoderLM | EncoderDecoder, saved: float, *, required: bool, say: Notice) -> ctypes.CDLL | None:
    """Compiled code, compiled before where there is none, if that pays; None if it does not.

    Args:
        model: what it is to compute.
        saved: seconds that it saves, once it is there.
        required: compile it whether it pays or not.
        say: told in a sentence what takes time.

    Raises:
        UnknownPartError: the model has parts that compiled code does not know.
        OSError, RuntimeError: it cannot be made or loaded.
    """
    if not required and saved < LOADING + bytes_of_weights(model) / PACKING:
        return None
    _refuse_unknown(model)
    return library(next(model.parameters()).dtype, build=required or saved > BUILDING, notice=say)


def bytes_of_weights(model: DecoderLM | EncoderDecoder) -> int:
    """Tied ones once."""
    return sum(parameter.nbytes for parameter in model.parameters())


def refuse_difference(actual: Tensor, expected: Tensor) -> None:
    """Where the model's own numbers are finite.

    Raises:
        RuntimeError: compiled code computes others.
    """
    if expected.isfinite().all() and not (actual - expected).abs().max() <= TOLERANCE * expected.abs().max():
        raise RuntimeError("what it computes is not the model's; please report this")


def _refuse_unknown(model: DecoderLM | EncoderDecoder) -> None:
    if model.device.type != "cpu":
        raise UnknownPartError(f"it is for a CPU, and the model is on {model.device.type}")
    if torch.is_autocast_enabled("cpu"):
        raise UnknownPartError("torch.autocast is on, in which other numbers are computed")
    for dtype in {parameter.dtype for parameter in model.parameters()} - CPP_TYPES.keys():
        name = str(dtype).removeprefix("torch.")
        raise UnknownPartError(f"it computes in float32 or float64, not in {name}, the type of the model's weights")
    for option in model.config.unusual_options(UNDERSTOOD):
        raise UnknownPartError(f"{option} = {getattr(model.config, option)} is not known to native code")
    if kind := hooked(model):
        raise UnknownPartError(f"something is hooked onto {kind}, a part of the model")
    for module in model.modules():
        if type(module).__module__.partition(".")[0] not in ("clearhead", "torch"):
            raise UnknownPartError(f"{type(module).__name__} is not a part of this library")
    if compiler() is None:
        raise UnknownPartError("there is no C++ compiler")
