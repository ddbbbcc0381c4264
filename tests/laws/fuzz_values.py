"""Random values for calls of native code, right and wrong ones, and what came of them."""

import ctypes
import random
from collections.abc import Callable
from typing import Any

import torch
from law_models import VOCAB_SIZE
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.models import DecoderLM, EncoderDecoder
from clearhead.native import library
from clearhead.parts import DecoderCache, SlotRows

WRONG: tuple[Any, ...] = (-1, -2, 1.5, None, 10**6, -(10**6), 2**31, 2**40, -(2**40), 2**63 - 1, -(2**63), 2**64)
INT64 = [wrong for wrong in WRONG if isinstance(wrong, int) and -(2**63) <= wrong < 2**63]
BLOCK_SIZES, WIDTHS = (3, 10, 24), ("float32", "float32", "bfloat16", "int8")


class Refused(str):
    """Our own sentence."""


def outcome(compute: Callable[[], Any]) -> Any:
    """What is computed, or the sentence."""
    try:
        return compute()
    except UsageError as error:
        return Refused(error)


def loaded(dtype: torch.dtype) -> ctypes.CDLL:
    engine = library(dtype, build=True, on_notice=lambda sentence: None)
    assert engine is not None
    return engine


def some_ids(draw: random.Random, count: int, vocab_size: int = VOCAB_SIZE) -> list[Any]:
    return [draw.randrange(vocab_size) for _ in range(count)]


def spoiled(draw: random.Random, rows: list[list[Any]], vocab_size: int) -> bool:
    """Put something wrong into one of the rows, seldom."""
    if draw.random() < 0.7:
        return False
    row = draw.choice(rows)
    if draw.random() < 0.1:
        row.clear()
    else:
        row[draw.randrange(len(row))] = draw.choice((*WRONG, vocab_size, vocab_size + 1))
    return True


def tensor_wrong(draw: random.Random, tensor: Tensor, vocab_size: int) -> None:
    """In place."""
    flat = tensor.view(-1)
    if len(flat):
        flat[draw.randrange(len(flat))] = draw.choice((*INT64, vocab_size))


def spoil_cache(draw: random.Random, held: DecoderCache, model: DecoderLM | EncoderDecoder) -> None:
    """Something about it is not what the model's own call leaves behind."""
    layer = draw.choice(held.layers)
    kind = draw.randrange(8)
    if kind == 0:
        held.layers = held.layers[:-1]
    elif kind == 1:
        layer.keys = layer.keys[:, :, : draw.randint(0, layer.keys.shape[2] - 1)].contiguous()
    elif kind == 2:
        layer.values = layer.values[: draw.randint(0, len(layer.values) - 1)]
    elif kind == 3:
        layer.keys = layer.keys.to(torch.float32 if layer.keys.dtype == torch.float64 else torch.float64)
    elif kind == 4:
        layer.values = layer.values.transpose(2, 3).contiguous().transpose(2, 3)
    elif kind == 5 and not isinstance(held, SlotRows):
        layer.length += draw.choice((-1, 1, 10**6))
    elif kind == 6 and held.tokens is not None:
        tensor_wrong(draw, held.tokens, VOCAB_SIZE + 1)
    else:
        held.positions = range(held.length + draw.choice((1, 7, 2**40)))


def close(actual: Tensor, expected: Tensor, real: Tensor) -> None:
    tolerance = 1e-9 if actual.dtype == torch.float64 else 1e-3
    apart = (actual - expected)[real].abs()
    largest = float(expected[real].abs().max()) if apart.numel() else 0.0
    assert not apart.numel() or float(apart.max()) <= tolerance * max(1.0, largest), float(apart.max())
