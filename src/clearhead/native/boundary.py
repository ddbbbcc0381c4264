"""Validate the inputs of native code, which would otherwise read or write foreign memory.

Shapes and dtypes are checked here; ids, positions and the numbers of a call are checked in checks.h.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.errors import InputError
from clearhead.native.structures import Decoder
from clearhead.parts import DecoderCache, SlotRows, refuse_unknown_ids

Shape = tuple[int, ...]


def raise_refusal(refusal: int, decoder: Decoder, ids: Tensor) -> None:
    """Raise an error for a `Refusal` of checks.h; 0 means that native code accepted the call.

    Args:
        ids: the tokens of the call.

    Raises:
        InputError: a token is not in the vocabulary, or something does not fit.
    """
    if not refusal:
        return
    refuse_unknown_ids(ids, decoder.head.outputs)
    reasons = {2: "a token that the cache holds is not in the vocabulary"}
    raise InputError(f"native code cannot read this: {reasons.get(refusal, 'its parts do not fit together')}")


def require(name: str, tensor: Tensor, shape: Shape, dtype: torch.dtype) -> None:
    """Check a tensor.

    Raises:
        InputError: it is not contiguous on the CPU with this shape and dtype.
    """
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous() or not tensor.is_cpu:
        raise InputError(f"{name} must be {dtype} of shape {shape} on the CPU, not {_describe(tensor)}")


def require_ids(ids: Tensor) -> None:
    """Check ids (B, T).

    Raises:
        InputError: they are not int64 of shape (B, T) on the CPU.
    """
    if ids.dim() != 2 or not ids.shape[1] or ids.dtype != torch.int64 or not ids.is_cpu:
        raise InputError(f"token ids must be torch.int64 of shape (B, T) on the CPU, not {_describe(ids)}")


def require_cache(cache: DecoderCache, decoder: Decoder, dtype: torch.dtype, rows: int, columns: int) -> None:
    """Check that a cache fits the model, this number of rows, and this number of new columns.

    Raises:
        InputError: it does not.
    """
    stack, in_slots = decoder.stack, isinstance(cache, SlotRows)
    room = cache.layers[0].keys.shape if cache.layers else (0, 0, 0, 0)
    shape = (room[0] if in_slots else rows, stack.n_kv_heads, room[2], stack.head_dim)
    if isinstance(cache, SlotRows):
        if len(cache.slots) != rows:
            raise InputError(f"the cache has {len(cache.slots)} rows, not {rows}")
        columns = columns if cache.counts is None else 0  # whether those fit is seen in checks.h
    if len(cache.layers) != stack.n_layers:
        raise InputError(f"the cache has {len(cache.layers)} layers, and the model {stack.n_layers}")
    for tensor in cache.keys_and_values:
        require("the cache's room", tensor, shape, dtype)
    length = cache.length
    if not in_slots and any(layer.length != length for layer in cache.layers):
        raise InputError("the cache's layers hold different numbers of columns")
    if length + columns > shape[2]:
        raise InputError(f"the cache has room for {shape[2]} columns and needs {length + columns}")
    tokens = cache.tokens
    if tokens is not None:
        require("the cache's tokens", tokens.contiguous(), (rows, tokens.shape[-1]), torch.int64)


def pointers_to(tensors: Sequence[Tensor]) -> "ctypes.Array[ctypes.c_void_p]":
    """The tensors' data pointers."""
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {(*tensor.shape,)} on {tensor.device}"
