"""What a file's tensors must be for a config: all of them, of the right shape, and none besides."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.interop.headers import CONFIG, in_short

Shape = tuple[int, ...]

MAX_TABLE_NUMBERS = 2**24  # in the sinusoidal table, for which no weight in the file vouches


def refuse_differences(
    path: Path, expected: Mapping[str, Shape], present: Mapping[str, Shape], optional: Mapping[str, Shape]
) -> None:
    """Every expected name and shape must be there, and none but those and the optional ones.

    Raises:
        DataError: lists every tensor that is missing, left over or of another shape.
    """
    known = {**expected, **optional}
    missing = [f"{name} is missing" for name in expected if name not in present]
    extra = [f"{name} is left over" for name in present if name not in known]
    wrong = [
        f"{name} has shape {list(present[name])} instead of {list(shape)}"
        for name, shape in known.items()
        if name in present and present[name] != shape
    ]
    if missing or extra or wrong:
        raise DataError(f"{path} does not fit {CONFIG}: {in_short(missing + extra + wrong)}")


def refuse_oversized(path: Path, config: ModelConfig, present: Mapping[str, Shape]) -> None:
    """No option may be larger than the file bears out, so that no memory is taken on config.json's word alone.

    Raises:
        DataError: names the first that is.
    """
    numbers = sum(math.prod(shape) for shape in present.values())
    for option, limit in LARGEST[config.architecture](config, len(present), numbers).items():
        if getattr(config, option) > limit:
            raise DataError(f"{path} is too small for {option} = {getattr(config, option)} in {CONFIG}")


def _largest_decoder(config: ModelConfig, tensors: int, numbers: int) -> dict[str, int]:
    """The largest options that so many tensors, with so many numbers in all, bear out."""
    largest = {"n_layers": tensors // 8} | dict.fromkeys(("vocab_size", "n_heads", "d_model", "d_ff"), numbers)
    if config.positions == "sinusoidal":
        largest["block_size"] = max(numbers, MAX_TABLE_NUMBERS) // config.d_model
    return largest


def _largest_encoder_decoder(config: ModelConfig, tensors: int, numbers: int) -> dict[str, int]:
    """Two stacks, and where the source has an embedding of its own, that too."""
    largest = _largest_decoder(config, tensors, numbers) | {"n_encoder_layers": tensors // 8}
    return largest | ({} if config.source_vocab_size is None else {"source_vocab_size": numbers})


def _largest_bigram(config: ModelConfig, tensors: int, numbers: int) -> dict[str, int]:
    """A table of pairs has no other size."""
    return {"vocab_size": numbers}


LARGEST: dict[str, Callable[[ModelConfig, int, int], dict[str, int]]] = {
    "decoder": _largest_decoder,
    "bigram": _largest_bigram,
    "encoder": _largest_decoder,
    "encoder_decoder": _largest_encoder_decoder,
}
