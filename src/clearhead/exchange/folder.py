"""A model as a folder: config.json, generation_config.json, model.safetensors, in a Hugging Face family's own words
wherever one fits. Files that are read count as hostile: no pickle, and no memory taken on a file's word."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from clearhead.config import ModelConfig
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.exchange.families import FAMILIES, family_of, obstacle
from clearhead.exchange.family import Family, Json
from clearhead.exchange.weights import Shape, links, to_foreign, to_own
from clearhead.models import LanguageModel, build

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
OWN_FORMAT = "clearhead"  # config.json's model_type where no family fits
BESIDE = {"model_type", "no_family_because", "dtype", "bos_token_id", "eos_token_id", "pad_token_id"}
FLOATS = {"F64", "F32", "F16", "BF16"}
MOST_CONFIG_BYTES = 2**20
WITH_BASE = {"rope", "sinusoidal"}  # the positions that rope_base changes
MOST_TABLE_NUMBERS = 2**24  # in the sinusoidal table, for which no weight in the file vouches


def save(folder: Path, model: LanguageModel, *, end_of_document: int | None = None) -> None:
    """Write the model into the folder, file by file under a temporary name that is then changed.

    Raises:
        ClearheadError: the folder cannot be written.
    """
    config = model.config
    family = family_of(config)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    tensors = {link.foreign: to_foreign(link, state).cpu() for link in links(family, config)}
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    tokens = {"bos_token_id": end_of_document, "eos_token_id": end_of_document}
    told = _own_words(config) if family is None else family.foreign_config(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
        _write_json(folder / CONFIG, {**told, **tokens, "pad_token_id": None, "dtype": dtype})
        _write_json(folder / GENERATION, {**tokens, "pad_token_id": end_of_document})
    except (OSError, SafetensorError) as error:
        raise ClearheadError(f"the model cannot be written to {folder}: {error}") from None


def _own_words(config: ModelConfig) -> Json:
    """config.json of a model that no family fits: our own options, and what stands in the way."""
    return {"model_type": OWN_FORMAT, "no_family_because": obstacle(config), **config.model_dump()}


def load(folder: Path, *, config: ModelConfig | None = None) -> LanguageModel:
    """The model in the folder, on the CPU, without dropout (`eval`), in float32 (in float64 if the file is).

    Args:
        folder: as `save` writes it, or a Hugging Face folder of a family that we have a table for.
        config: the options that the model is known to have; without it, config.json decides.

    Raises:
        DataError: anything missing, left over, of the wrong shape, damaged or of another architecture.
    """
    family, told = read_config(folder)
    if config is not None:
        biased = family is not None and family.always_biased  # config.json cannot say otherwise there
        _refuse_another(folder / CONFIG, config, told.model_copy(update={"bias": config.bias}) if biased else told)
    config = config or told
    path = _weights_file(folder)
    try:
        with safe_open(path, framework="pt") as file:
            return _load(file, path, family, config)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}") from None


def read_config(folder: Path) -> tuple[Family | None, ModelConfig]:
    """The family that config.json names (None: our own format) and the options that it gives.

    Raises:
        DataError: no such file, no such family, or a value that has no equal here.
    """
    path = folder / CONFIG
    told = _read_json(path)
    kind = told.get("model_type")
    try:
        if kind == OWN_FORMAT:
            return None, ModelConfig.read({key: value for key, value in told.items() if key not in BESIDE})
        if isinstance(kind, str) and kind in FAMILIES:
            return FAMILIES[kind], FAMILIES[kind].own_config(told)
    except (DataError, UsageError) as error:
        raise DataError(f"{path}: {error}") from None
    raise DataError(f"{path} is of a model_type {kind!r}; this version reads {', '.join([*FAMILIES, OWN_FORMAT])}")


def _load(file: Any, path: Path, family: Family | None, config: ModelConfig) -> LanguageModel:
    """The model from an open safetensors file: every name and shape is checked before any weight is read."""
    present = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dict)
    _refuse_oversized(path, config, present)
    table = links(family, config)
    head = _tied_head(family, config, present)
    _refuse_differences(path, {link.foreign: link.foreign_shape for link in table}, present, head)
    types = {file.get_slice(name).get_dtype() for name in present}
    if types - FLOATS:
        raise DataError(f"{path} holds numbers of type {', '.join(sorted(types - FLOATS))}, which no weights are")
    model = build(config).to(torch.float64 if "F64" in types else torch.float32)
    state = model.state_dict()
    for link in table:
        for name, tensor in to_own(link, file.get_tensor(link.foreign)).items():
            if name in state:
                state[name].copy_(tensor)
            elif tensor.any():
                raise DataError(f"{path}: {link.foreign} is not zero, but the model has bias = false")
    if head and not torch.equal(file.get_tensor(head), state["embedding.weight"].to(file.get_tensor(head).dtype)):
        raise DataError(f"{path}: {head} differs from the embedding, but {CONFIG} says that they are tied")
    return model.eval()


def _tied_head(family: Family | None, config: ModelConfig, present: dict[str, Shape]) -> str | None:
    """The head's own name if the file holds it although it is the embedding: some writers do."""
    if family is None or not config.tied:
        return None
    name = next(f"{entry.foreign}.weight" for entry in family.entries if entry.own == "unembedding")
    return name if name in present else None


def _refuse_differences(path: Path, wanted: dict[str, Shape], present: dict[str, Shape], head: str | None) -> None:
    if head:
        wanted = wanted | {head: next(iter(wanted.values()))}  # the embedding's shape; it comes first in every table
    missing = [f"{name} is missing" for name in wanted if name not in present]
    extra = [f"{name} is left over" for name in present if name not in wanted]
    wrong = [
        f"{name} has shape {list(present[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in present and present[name] != shape
    ]
    if missing or extra or wrong:
        raise DataError(f"{path} does not fit {CONFIG}: {', '.join(missing + extra + wrong)}")


def _refuse_oversized(path: Path, config: ModelConfig, present: dict[str, Shape]) -> None:
    """No option may be larger than the file bears out, so that no memory is taken on config.json's word alone."""
    numbers = sum(math.prod(shape) for shape in present.values())
    for option, limit in LARGEST[config.architecture](config, len(present), numbers).items():
        if getattr(config, option) > limit:
            raise DataError(f"{path} is too small for {option} = {getattr(config, option)} in {CONFIG}")


def _largest_decoder(config: ModelConfig, tensors: int, numbers: int) -> dict[str, int]:
    """The largest options that so many tensors, with so many numbers in all, bear out."""
    largest = {"n_layers": tensors // 8} | dict.fromkeys(("vocab_size", "n_heads", "d_model", "d_ff"), numbers)
    if config.positions == "sinusoidal":
        largest["block_size"] = max(numbers, MOST_TABLE_NUMBERS) // config.d_model
    return largest


def _largest_bigram(config: ModelConfig, tensors: int, numbers: int) -> dict[str, int]:
    """A table of pairs has no other size."""
    return {"vocab_size": numbers}


LARGEST: dict[str, Callable[[ModelConfig, int, int], dict[str, int]]] = {
    "decoder": _largest_decoder,
    "bigram": _largest_bigram,
}


def _refuse_another(path: Path, known: ModelConfig, told: ModelConfig) -> None:
    """config.json must agree with the options that the caller knows, where they are part of the architecture."""
    meaningless = {"dropout", "attention_dropout", "feedforward_dropout"}
    if known.positions not in WITH_BASE:
        meaningless.add("rope_base")
    for option, value in known.model_dump(exclude=meaningless).items():
        if value != getattr(told, option):
            raise DataError(f"{path} says {option} = {getattr(told, option)!r}, the run's options say {value!r}")


def _weights_file(folder: Path) -> Path:
    path = folder / WEIGHTS
    if path.is_file():
        return path
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise DataError(f"{folder / pickles[0]} is a pickle, which can run code when read; convert it to {WEIGHTS}")
    raise DataError(f"there is no {WEIGHTS} in {folder}")


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Through a temporary file that is flushed and renamed; safetensors would leave it readable by its owner alone."""
    temporary = path.with_name(f".unfinished-{path.name}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_json(path: Path, value: Json) -> None:
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    _write(path, lambda temporary: temporary.write_bytes(text.encode("utf-8")))


def _read_json(path: Path) -> Json:
    try:
        if path.stat().st_size > MOST_CONFIG_BYTES:
            raise DataError(f"{path} has {path.stat().st_size} bytes, too many for a config")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"there is no {path.name} in {path.parent}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} holds no JSON object")
    return value
