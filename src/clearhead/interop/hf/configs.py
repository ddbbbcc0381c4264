"""What a folder's config.json says, and whether the headers beside it agree. No torch."""

from collections.abc import Mapping
from pathlib import Path

from clearhead.config import ModelConfig
from clearhead.errors import DataError, UsageError
from clearhead.interop.checks import check_tensors
from clearhead.interop.headers import (
    CONFIG,
    Stored,
    inside,
    quote,
    read_json,
    refuse_large_tokenizer,
    shorten,
    stored_tensors,
)
from clearhead.interop.hf.families import FAMILIES
from clearhead.interop.hf.family import Family
from clearhead.interop.memory import refuse_larger_than_memory

OWN_FORMAT = "clearhead"  # config.json's model_type where no family fits
TOKENS = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"}
BESIDE = {"model_type", "no_family_because", "dtype", *TOKENS}


def check(folder: Path) -> None:
    """Refuse what `load` would, as far as config.json and headers tell: names, shapes, sizes, and the memory they take.

    Raises:
        DataError: as `load`; or the tokenizer.json is larger than that of such a model.
    """
    family, config = read_config(folder)
    stored = stored_tensors(folder)
    check_tensors(place(folder, stored), stored, family, config)
    refuse_larger_than_memory(place(folder, stored), stored.values())
    refuse_large_tokenizer(folder, max(config.vocab_size, config.source_vocab_size or 0))


def place(folder: Path, stored: Mapping[str, Stored]) -> Path:
    """What a sentence names: the file, where there is one."""
    files = {tensor.file for tensor in stored.values()}
    return files.pop() if len(files) == 1 else folder


def read_config(folder: Path) -> tuple[Family | None, ModelConfig]:
    """The family that config.json names (None: our own format) and the options that it gives.

    Raises:
        DataError: no such file, no such family, or a value that is not supported.
    """
    path = inside(folder, CONFIG)
    settings = read_json(path)
    kind = settings.get("model_type")
    try:
        if kind == OWN_FORMAT:
            return None, ModelConfig.read({key: value for key, value in settings.items() if key not in BESIDE})
        if isinstance(kind, str) and kind in FAMILIES:
            return FAMILIES[kind], FAMILIES[kind].own_config(settings)
    except (DataError, UsageError) as error:
        raise DataError(f"{path}: {shorten(str(error))}") from None
    except OverflowError:  # no limit of Python's keeps an integer from being larger than any float
        raise DataError(f"{path} holds a number that is too large for any size") from None
    raise DataError(f"{path} is of a model_type {quote(kind)}; this version reads {', '.join([*FAMILIES, OWN_FORMAT])}")
