"""A model as a folder: config.json, generation_config.json, model.safetensors, in a Hugging Face family's own words
wherever one fits. Files that are read count as hostile: no pickle, and no memory taken on a file's word."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from clearhead.config import ModelConfig
from clearhead.errors import ClearheadError, DataError, UsageError
from clearhead.exchange.families import FAMILIES, family_of, obstacle
from clearhead.exchange.family import INVISIBLE, Family, Json
from clearhead.exchange.relics import relics_among
from clearhead.exchange.weights import Shape, copies, links, names_in_file, to_foreign, to_own
from clearhead.models import LanguageModel, build

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
OWN_FORMAT = "clearhead"  # config.json's model_type where no family fits
TOKENS = {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"}
BESIDE = {"model_type", "no_family_because", "dtype", *TOKENS}
BEGINNING = {"encoder_decoder"}  # the architectures that write a text of their own, which must begin with something
FLOATS = {"F64", "F32", "F16", "BF16"}
MOST_CONFIG_BYTES = 2**20
# Options of positions -> the kinds that they change.
OF_POSITIONS = {
    "rope_base": {"rope", "sinusoidal"},
    "rope_fraction": {"rope"},
    "relative_buckets": {"relative"},
    "relative_distance": {"relative"},
}
MOST_TABLE_NUMBERS = 2**24  # in the sinusoidal table, for which no weight in the file vouches


class SpecialTokens(NamedTuple):
    """Ids that other readers of a folder must know; None where the tokenizer has no such token.

    Args:
        end: ends a text; a translation begins with it as well, unless the model's config has a token for that.
        pad: fills up short rows.
    """

    end: int | None = None
    pad: int | None = None


NO_TOKENS = SpecialTokens()


def save(folder: Path, model: LanguageModel, tokens: SpecialTokens = NO_TOKENS) -> None:
    """Write the model into the folder, file by file under a temporary name that is then changed.

    Args:
        folder: where.
        model: what; a pad token that it goes by itself is the one that is told.
        tokens: of the tokenizer that it was trained with.

    Raises:
        ClearheadError: the folder cannot be written.
    """
    config, end = model.config, tokens.end
    assert config.pad_id is None or config.pad_id != end, "nobody attends to padding, so no text ends with it"
    pad = config.pad_id if config.pad_id is not None else tokens.pad
    family = family_of(config)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    numbers = next(iter(state.values())).dtype
    tensors = {link.foreign: to_foreign(link, state).cpu() for link in links(family, config)}
    for name, fixed in family.fixed.items() if family else ():
        tensors[name] = fixed.make(config).to(numbers)
    ids: Json = {"bos_token_id": end, "eos_token_id": end}
    banned: Json = {}
    if config.architecture in BEGINNING:
        ids["decoder_start_token_id"] = config.start_id if end is None else config.first_token(end)
        banned = {} if pad is None else {"bad_words_ids": [[pad]]}  # padding is no word
    told = _own_words(config) if family is None else family.foreign_config(config)
    dtype = str(numbers).removeprefix("torch.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"}))
        _write_json(folder / CONFIG, {**told, **ids, "pad_token_id": config.pad_id, "dtype": dtype})
        _write_json(folder / GENERATION, {**ids, **banned, "pad_token_id": end if pad is None else pad})
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
        _refuse_another(folder / CONFIG, family.complete(config) if family else config, told)
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
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    _refuse_oversized(path, config, {name: tuple(part.get_shape()) for name, part in slices.items()})
    table = links(family, config)
    names = names_in_file(family, table, slices)
    present = {name: tuple(slices[own].get_shape()) for name, own in names.items()}
    relics = relics_among(family.relics, present) if family else {}
    fixed = {} if family is None else {name: kind for name, kind in family.fixed.items() if name in present}
    wanted, originals = {link.foreign: link.foreign_shape for link in table}, copies(family, table)
    optional = {copy: wanted[original] for copy, original in originals.items()}
    optional |= {name: tuple(kind.make(config).shape) for name, kind in fixed.items()}
    optional |= {link.foreign: wanted.pop(link.foreign) for link in table if link.optional}
    optional |= {name: kind.shape(config) for name, kind in relics.items()}
    _refuse_differences(path, wanted, present, optional)
    types = {slices[own].get_dtype() for name, own in names.items() if name not in relics}
    if types - FLOATS:
        raise DataError(f"{path} holds numbers of type {', '.join(sorted(types - FLOATS))}, which no weights are")
    for name, kind in fixed.items():
        expected = kind.make(config).float()
        if not torch.allclose(file.get_tensor(names[name]).float(), expected, rtol=0, atol=kind.tolerance):
            raise DataError(f"{path}: the numbers in {name} have no equal here; {kind.told} have")
    for name, relic in relics.items():
        if not relic.holds(config, file.get_tensor(names[name])):
            raise DataError(f"{path}: the numbers in {name} have no equal here; {relic.told} have")
    for name in set(originals) & set(present):
        copy, original = file.get_tensor(names[name]), originals[name]
        if not torch.equal(copy, file.get_tensor(names[original]).to(copy.dtype)):
            raise DataError(f"{path}: {name} differs from {original}, but {CONFIG} says that they are tied")
    model = build(config).to(torch.float64 if "F64" in types else torch.float32)
    state = model.state_dict()
    for link in table:
        foreign = file.get_tensor(names[link.foreign]) if link.foreign in names else torch.zeros(link.foreign_shape)
        for name, tensor in to_own(link, foreign).items():
            if name in state:
                state[name].copy_(tensor)
            elif tensor.any():
                raise DataError(f"{path}: {link.foreign} is not zero, but the model has no {name}")
    return model.eval()


def _refuse_differences(
    path: Path, wanted: dict[str, Shape], present: dict[str, Shape], optional: dict[str, Shape]
) -> None:
    """Every name and shape that is wanted must be there, and none but those and the optional ones."""
    known = wanted | optional
    missing = [f"{name} is missing" for name in wanted if name not in present]
    extra = [f"{name} is left over" for name in present if name not in known]
    wrong = [
        f"{name} has shape {list(present[name])} instead of {list(shape)}"
        for name, shape in known.items()
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
# What an architecture never looks at: foreign files do not tell it, and it changes no number.
UNREAD: dict[str, set[str]] = {
    "decoder": {"source_vocab_size", "n_encoder_layers", "pad_id"},
    "bigram": {"source_vocab_size", "n_encoder_layers", "pad_id"},
    "encoder": {"source_vocab_size", "n_encoder_layers"},
    "encoder_decoder": set(),
}


def _refuse_another(path: Path, known: ModelConfig, told: ModelConfig) -> None:
    """config.json must agree with the options that the caller knows, where they are part of the architecture."""
    meaningless = INVISIBLE | {"initialisation"} | UNREAD[known.architecture]
    meaningless |= {option for option, kinds in OF_POSITIONS.items() if known.positions not in kinds}
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
