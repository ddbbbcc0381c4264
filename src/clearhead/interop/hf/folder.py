"""A model as a folder: config.json, generation_config.json, model.safetensors, in a Hugging Face family's own words
wherever one fits. Files that are read count as hostile: no pickle, and no memory taken on a file's word."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import ClearheadError, DataError
from clearhead.files import write_json, write_whole
from clearhead.interop.headers import CONFIG, WEIGHTS, Json, inside, read_json, stored_tensors
from clearhead.interop.hf.configs import OWN_FORMAT, place, read_config
from clearhead.interop.hf.constants import Constant
from clearhead.interop.hf.families import family_of, obstacle
from clearhead.interop.hf.key_map import links
from clearhead.interop.hf.weights import to_foreign
from clearhead.interop.load_weights import filled_model
from clearhead.interop.tensor_files import Writable, write_tensors
from clearhead.models import LanguageModel

GENERATION = "generation_config.json"
BEGINNING = {"encoder_decoder"}  # the architectures that write a text of their own, which must begin with something


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
        model: what; its own pad token, if it has one, wins over that of the tokenizer.
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
    tensors = {
        link.foreign: Writable(link.foreign_shape, numbers, partial(to_foreign, link, state))
        for link in links(family, config)
    }
    for name, constant in family.constants.items() if family else ():
        tensors[name] = Writable(constant.shape(config), numbers, partial(_numbers_of, constant, config, numbers))
    ids: Json = {"bos_token_id": end, "eos_token_id": end}
    banned: Json = {}
    if config.architecture in BEGINNING:
        ids["decoder_start_token_id"] = config.decoder_start_id if end is None else config.first_token(end)
        banned = {} if pad is None else {"bad_words_ids": [[pad]]}  # padding is no word
    settings = _own_config(config) if family is None else family.foreign_config(config)
    dtype = str(numbers).removeprefix("torch.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / WEIGHTS, lambda path: write_tensors(path, tensors, {"format": "pt"}))
        write_json(folder / CONFIG, {**settings, **ids, "pad_token_id": config.pad_id, "dtype": dtype})
        write_json(folder / GENERATION, {**ids, **banned, "pad_token_id": end if pad is None else pad})
    except OSError as error:
        raise ClearheadError(f"the model cannot be written to {folder}: {error}") from None


def _numbers_of(constant: Constant, config: ModelConfig, numbers: torch.dtype) -> Tensor:
    return constant.make(config).to(numbers)


def _own_config(config: ModelConfig) -> Json:
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
    family, file_config = read_config(folder)
    if config is not None:
        _refuse_another(folder / CONFIG, family.complete(config) if family else config, file_config)
    stored = stored_tensors(folder)
    return filled_model(place(folder, stored), stored, family, config or file_config)


def read_tokens(folder: Path) -> SpecialTokens:
    """The special tokens that generation_config.json names, or config.json; the first, where it names several.

    Raises:
        DataError: a file is no JSON object.
    """
    settings = read_json(inside(folder, CONFIG))
    generation = inside(folder, GENERATION)
    settings |= {k: v for k, v in (read_json(generation) if generation.exists() else {}).items() if v is not None}
    return SpecialTokens(end=_token(settings.get("eos_token_id")), pad=_token(settings.get("pad_token_id")))


def _token(value: object) -> int | None:
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, int) and not isinstance(first, bool) and first >= 0 else None


def _refuse_another(path: Path, known: ModelConfig, written: ModelConfig) -> None:
    """config.json must agree with the options that the caller knows, where they are part of the architecture."""
    for option, value in known.model_dump(exclude=known.idle_options).items():
        if value != getattr(written, option):
            raise DataError(f"{path} says {option} = {getattr(written, option)!r}, the run's options say {value!r}")
