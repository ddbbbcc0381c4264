"""A GGUF file, computed by transformers, which has a reader of its own and is left as it is."""

import io
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clearhead.interop.extras import require
from clearhead.interop.peer import CannotOpenError, Peer
from clearhead.interop.verify import TransformersPeer, first_line, quiet_transformers, refuse_faults


def open_gguf(path: Path, unread: Mapping[str, int] | None = None) -> Peer:
    """The model and tokenizer that `save_gguf` wrote into the file.

    Args:
        path: the file.
        unread: settings for the reader, because it skips them in the file.

    Raises:
        UsageError: transformers or what its reader needs is missing.
        CannotOpenError: it cannot be opened, or a weight is missing or left over.
    """
    require("gguf", "gguf", "transformers", "accelerate")
    with _alone(path) as folder, quiet_transformers() as transformers, redirect_stderr(io.StringIO()):  # it has a bar
        name = f"transformers {transformers.__version__} (GGUF)"
        arguments: dict[str, Any] = {"pretrained_model_name_or_path": folder, "gguf_file": path.name}
        try:
            if unread:
                arguments["config"] = transformers.AutoConfig.from_pretrained(**arguments)
                arguments["config"].update(unread)
            model, loading_info = transformers.AutoModelForCausalLM.from_pretrained(
                **arguments, output_loading_info=True, dtype=torch.float32
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(**arguments)
        except Exception as error:  # the reader raises nothing more precise
            raise CannotOpenError(name, path, first_line(error)) from None
    refuse_faults(name, path, loading_info)
    return TransformersPeer(name, model, tokenizer, causal=True)


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """A folder with nothing else in it: the reader would take a tokenizer.json that lies beside the file instead."""
    with TemporaryDirectory() as folder:
        link = Path(folder, path.name)
        try:
            link.symlink_to(path.absolute())
        except OSError:  # a system without links, or one that does not let everybody make them
            shutil.copyfile(path, link)
        yield Path(folder)
