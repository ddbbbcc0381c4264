"""A model in one safetensors file under our own names, its options in the file's metadata."""

import json
from functools import partial
from pathlib import Path

from clearhead.config import ModelConfig
from clearhead.errors import DataError, UsageError
from clearhead.files import write_whole
from clearhead.interop.headers import read_header, read_metadata
from clearhead.interop.hf.key_map import links
from clearhead.interop.hf.weights import to_foreign
from clearhead.interop.load_weights import filled_model
from clearhead.interop.tensor_files import Writable, write_tensors
from clearhead.models import LanguageModel

OPTIONS = "clearhead"  # the key of the metadata that holds ModelConfig as JSON


def save_file(path: Path, model: LanguageModel) -> None:
    """Write the model; `load_file` reads it, and so does whatever reads safetensors: the names are `state_dict`'s.

    Raises:
        OSError: the file cannot be written.
    """
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    numbers = next(iter(state.values())).dtype
    tensors = {
        link.foreign: Writable(link.foreign_shape, numbers, partial(to_foreign, link, state))
        for link in links(None, model.config)
    }
    metadata = {"format": "pt", OPTIONS: json.dumps(model.config.model_dump())}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda temporary: write_tensors(temporary, tensors, metadata))


def load_file(path: Path) -> LanguageModel:
    """The model that `save_file` wrote, on the CPU, in evaluation mode.

    Raises:
        DataError: the file is damaged, or another program's.
    """
    stored = read_header(path)
    options = read_metadata(path).get(OPTIONS)
    if options is None:
        raise DataError(f"{path} does not say what model it holds; give a folder with config.json instead")
    try:
        config = ModelConfig.read(json.loads(options))
    except (UsageError, ValueError, TypeError) as error:
        raise DataError(f"{path}: {error}") from None
    return filled_model(path, stored, None, config)
