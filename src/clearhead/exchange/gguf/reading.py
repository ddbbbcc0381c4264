"""A GGUF file, computed by transformers, which has a reader of its own."""

import io
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import ClearheadError
from clearhead.exchange.extras import require
from clearhead.exchange.gguf.layouts import LAYOUTS
from clearhead.exchange.peer import Peer
from clearhead.parts import padded_positions


def open_gguf(path: Path) -> Peer:
    """The model and tokenizer that `save_gguf` wrote into the file.

    Raises:
        UsageError: transformers or what its reader needs is missing.
        ClearheadError: it cannot be opened, or a weight is missing or left over.
    """
    require("gguf", "gguf", "transformers", "accelerate")
    return _Reader(path)


class _Reader:
    def __init__(self, path: Path) -> None:
        with _alone(path) as folder, _quietly() as transformers:
            place: dict[str, Any] = {"pretrained_model_name_or_path": folder, "gguf_file": path.name}
            self.name = f"transformers {transformers.__version__} (GGUF)"
            try:
                config = transformers.AutoConfig.from_pretrained(**place)
                for key, value in _overlooked(path, config.model_type):
                    setattr(config, key, value)
                model, told = transformers.AutoModelForCausalLM.from_pretrained(
                    **place, config=config, output_loading_info=True, dtype=torch.float32
                )
                self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**place)
            except Exception as error:  # the reader raises nothing more precise
                raise ClearheadError(f"{self.name} cannot open {path}: {error}") from None
        faults = [f"{fault} {sorted(names)}" for fault, names in told.items() if names]
        if faults:
            raise ClearheadError(f"{self.name} opens {path} with {', '.join(faults)}")
        self._model = model.eval()
        self._model.generation_config.eos_token_id = None  # no early end

    @torch.inference_mode()
    def logits(self, ids: Tensor, lengths: Tensor, target: Tensor | None = None) -> Tensor:
        assert target is None, "GGUF holds decoders"
        positions = padded_positions(lengths, ids.shape[1], "left")
        found = self._model(ids, attention_mask=(positions >= 0).long(), position_ids=positions.clamp(min=0))
        return torch.as_tensor(found.logits).float()

    @torch.inference_mode()
    def greedy(self, ids: Tensor, n: int) -> Tensor:
        with _quietly():
            found = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, num_beams=1, pad_token_id=0
            )
        return torch.as_tensor(found)

    def tokenize(self, text: str) -> list[int]:
        with _quietly():
            found = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        return list(found["input_ids"])


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


@contextmanager
def _quietly() -> Iterator[Any]:
    """`transformers` without its bars, its advice and its warnings; afterwards it is as it was."""
    transformers: Any = import_module("transformers")
    log = transformers.utils.logging
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield transformers
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()
