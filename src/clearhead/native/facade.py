"""Native code for a model: whether it is supported, whether it saves time, and whether its results are right."""

import ctypes

import torch
from torch import Tensor

from clearhead.models import DecoderLM, EncoderDecoder
from clearhead.models.eval_mode import OnNotice, first_hooked_module
from clearhead.native.building import CPP_TYPES, compiler, library
from clearhead.native.structures import UnknownPartError

BUILD_SECONDS, LOAD_SECONDS = 3.0, 0.02  # seconds before the first native token: with compilation, and without
PACK_BYTES_PER_SECOND = 5e8  # bytes of weights packed per second
CALL_SECONDS = 1.5e-4  # seconds of overhead per block of an eager call; embedding and head together count as two
TOLERANCE = 1e-3  # relative to the largest number
# The options of a model that native code computes; any other must be at its default.
SUPPORTED_OPTIONS = {
    *("architecture", "vocab_size", "source_vocab_size", "pad_id", "block_size", "n_layers", "n_encoder_layers"),
    *("n_heads", "n_kv_heads", "d_model", "head_dim", "norm", "norm_position", "norm_eps", "embedding_norm"),
    *("parallel_residual", "feedforward", "d_ff", "positions", "rope_theta", "partial_rotary_factor"),
    *("relative_buckets", "relative_max_distance", "qk_norm", "scale_attention", "bias", "qkv_bias", "sliding_window"),
    *("tie_embeddings", "scale_embedding", "scale_logits", "head_transform", "head_bias", "embedding_ngrams"),
    *("logit_ngrams", "ngram_rows", "decoder_start_id"),
}


def library_for(
    model: DecoderLM | EncoderDecoder, saved: float, *, required: bool, on_notice: OnNotice
) -> ctypes.CDLL | None:
    """The native library for a model, compiled first if need be; None where that would not save time.

    Args:
        model: the model to run natively.
        saved: seconds that native code saves, once it is loaded.
        required: use it even where it does not save time.
        on_notice: called with a sentence before a slow compilation.

    Raises:
        UnknownPartError: native code does not implement a part of the model.
        OSError, RuntimeError: the library cannot be compiled or loaded.
    """
    if not required and saved < LOAD_SECONDS + weight_bytes(model) / PACK_BYTES_PER_SECOND:
        return None
    _refuse_unknown(model)
    return library(next(model.parameters()).dtype, build=required or saved > BUILD_SECONDS, on_notice=on_notice)


def weight_bytes(model: DecoderLM | EncoderDecoder) -> int:
    """Bytes of all parameters, tied ones counted once."""
    return sum(parameter.nbytes for parameter in model.parameters())


def refuse_difference(actual: Tensor, expected: Tensor) -> None:
    """Compare native with eager results; skipped where eager is not finite.

    Raises:
        RuntimeError: they differ by more than the tolerance.
    """
    if expected.isfinite().all() and not (actual - expected).abs().max() <= TOLERANCE * expected.abs().max():
        raise RuntimeError("its output differs from PyTorch's; please report this")


def _refuse_unknown(model: DecoderLM | EncoderDecoder) -> None:
    if model.device.type != "cpu":
        raise UnknownPartError(f"it is for a CPU, and the model is on {model.device.type}")
    if torch.is_autocast_enabled("cpu"):
        raise UnknownPartError("torch.autocast is on, in which other numbers are computed")
    for dtype in {parameter.dtype for parameter in model.parameters()} - CPP_TYPES.keys():
        name = str(dtype).removeprefix("torch.")
        raise UnknownPartError(f"it computes in float32 or float64, not in {name}, the type of the model's weights")
    for option in model.config.unusual_options(SUPPORTED_OPTIONS):
        raise UnknownPartError(f"{option} = {getattr(model.config, option)} is not known to native code")
    if kind := first_hooked_module(model):
        raise UnknownPartError(f"{kind} has a forward hook")
    for module in model.modules():
        if type(module).__module__.partition(".")[0] not in ("clearhead", "torch"):
            raise UnknownPartError(f"{type(module).__name__} is not a part of this library")
    if compiler() is None:
        raise UnknownPartError("there is no C++ compiler")
