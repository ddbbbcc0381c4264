"""A GGUF file, computed by transformers, which has a reader of its own."""

import io
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clearhead.errors import ClearheadError
from clearhead.exchange.extras import require
from clearhead.exchange.gguf.layouts import LAYOUTS
from clearhead.exchange.peer import Peer
from clearhead.exchange.peers import TransformersPeer, quiet_transformers, refuse_faults


def open_gguf(path: Path) -> Peer:
    """The model and tokenizer that `save_gguf` wrote into the file.

    Raises:
        UsageError: transformers or what its reader needs is missing.
        ClearheadError: it cannot be opened, or a weight is missing or left over.
    """
    require("gguf", "gguf", "transformers", "accelerate")
    with _alone(path) as folder, quiet_transformers() as transformers, redirect_stderr(io.StringIO()):  # it has a bar
        name = f"transformers {transformers.__version__} (GGUF)"
        place: dict[str, Any] = {"pretrained_model_name_or_path": folder, "gguf_file": path.name}
        try:
            config = transformers.AutoConfig.from_pretrained(**place)
            for key, value in _overlooked(path, config.model_type):
                setattr(config, key, value)
            model, told = transformers.AutoModelForCausalLM.from_pretrained(
                **place, config=config, output_loading_info=True, dtype=torch.float32
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
        except Exception as error:  # the reader raises nothing more precise
            raise ClearheadError(f"{name} cannot open {path}: {error}") from None
    refuse_faults(name, path, told)
    return TransformersPeer(name, model, tokenizer, causal=True)


def _overlooked(path: Path, family: str) -> Iterator[tuple[str, Any]]:
    """What the file says and the reader does not read, under transformers' names."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    for key, name in LAYOUTS[family].overlooked.items():
        yield name, fields[f"{family}.{key}"].contents()


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """A folder with nothing else in it: the reader would take a tokenizer.json that lies beside the file instead."""
    with TemporaryDirectory() as folder:
        place = Path(folder, path.name)
        try:
            place.symlink_to(path.absolute())
        except OSError:  # a system without links, or one that does not let everybody make them
            shutil.copyfile(path, place)
        yield Path(folder)
