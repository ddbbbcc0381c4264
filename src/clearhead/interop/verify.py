"""Exports as others open them: `transformers` reads a folder, our own loader a file; and Clearhead's own model."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import __version__
from clearhead.interop.extras import require
from clearhead.interop.headers import CONFIG, TOKENIZER, read_json
from clearhead.interop.peer import CannotOpenError, Peer
from clearhead.interop.single_file import load_file
from clearhead.models import CausalLM, EncoderDecoder, LanguageModel
from clearhead.parts import positions_from_lengths

# The end of the class that config.json names -> the automatic class that opens it.
AUTOMATIC = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
}

ADVICE = ("eos_token_id", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens")


def require_transformers() -> None:
    """Raise unless transformers is installed.

    Raises:
        UsageError: transformers is not installed.
    """
    require("hub", "transformers")


def open_transformers(folder: Path) -> Peer:
    """The folder as plain `from_pretrained` opens it.

    Raises:
        UsageError: transformers is not installed.
        CannotOpenError: it cannot be opened, or a weight is missing or left over.
    """
    require_transformers()
    with quiet_transformers() as transformers:
        name = f"transformers {transformers.__version__}"
        settings: dict[str, Any] = read_json(folder / CONFIG)
        architecture = str(settings["architectures"][0])
        automatic = next(auto for end, auto in AUTOMATIC.items() if architecture.endswith(end))
        try:
            model, loading_info = getattr(transformers, automatic).from_pretrained(
                folder, output_loading_info=True, local_files_only=True, dtype=torch.float32
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise CannotOpenError(name, folder, first_line(error)) from None
        tokenizer: Any = None
        if (folder / TOKENIZER).is_file():
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    refuse_faults(name, folder, loading_info)
    return TransformersPeer(name, model, tokenizer, causal=automatic == "AutoModelForCausalLM")


def open_own(path: Path, *, start: int = 0) -> Peer:
    """The file that `save_file` wrote, read back."""
    return OwnPeer(load_file(path), start=start)


class OwnPeer:
    """A model of this library, asked as others are.

    Args:
        model: in evaluation mode, on the CPU.
        start: the token that a translation begins with.
    """

    def __init__(self, model: LanguageModel, *, start: int = 0) -> None:
        self.name = f"clearhead {__version__}"
        self._model, self._start = model, start

    @torch.inference_mode()
    def logits(self, ids: Tensor, lengths: Tensor, target: Tensor | None = None) -> Tensor:
        positions = positions_from_lengths(
            lengths, ids.shape[1], "left" if isinstance(self._model, CausalLM) else "right"
        )
        if target is None:
            return torch.as_tensor(self._model(ids, positions=positions)).float()
        # Every target token is a word here, also the one that elsewhere is padding.
        target_positions = torch.arange(target.shape[1]).expand_as(target)  # (B, T_tgt)
        return torch.as_tensor(
            self._model(ids, target, source_positions=positions, target_positions=target_positions)
        ).float()

    @torch.inference_mode()
    def greedy(self, ids: Tensor, n: int) -> Tensor:
        written = ids  # (1, T)
        if isinstance(self._model, EncoderDecoder):
            memory = self._model.encode(ids, positions=torch.arange(ids.shape[1])[None])
            written = torch.tensor([[self._start]])
            cache = self._model.new_cache(1, n)
        else:
            assert isinstance(self._model, CausalLM), "an encoder cannot continue a text"
            cache = self._model.new_cache(1, ids.shape[1] + n)
        unread = written
        for _ in range(n):
            if isinstance(self._model, EncoderDecoder):
                hidden = self._model.decode(unread, memory, cache=cache)  # (1, 1, D)
            else:
                hidden = self._model.body(unread, cache=cache)  # (1, T, D), then (1, 1, D)
            unread = self._model.head(hidden[:, -1:]).argmax(-1)  # (1, 1)
            written = torch.cat((written, unread), dim=1)
        return written

    def tokenize(self, text: str) -> list[int] | None:
        return None


def refuse_faults(name: str, path: Path, loading_info: Mapping[str, Collection[str]]) -> None:
    """The loading info of `from_pretrained` must be empty: no weight missing or left over.

    Raises:
        CannotOpenError: it is not.
    """
    faults = [f"{fault} {sorted(names)}" for fault, names in loading_info.items() if names]
    if faults:
        raise CannotOpenError(name, path, ", ".join(faults))


def first_line(error: Exception) -> str:
    """What an exception says first; some go on with a table of every weight."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# `transformers` is optional, and whoever checks these types need not have it: its objects are `Any`.
class TransformersPeer:
    """A model of `transformers`, with its own cache.

    Args:
        name: of the program.
        model, tokenizer: as `from_pretrained` made them.
        causal: the model goes on with a text, so rows are filled up on the left.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any, *, causal: bool) -> None:
        self.name, self._model, self._tokenizer, self._causal = name, model.eval(), tokenizer, causal
        if hasattr(model, "generation_config"):  # an encoder writes no text
            for advice in ADVICE:  # the likeliest token is asked for, whatever the folder advises
                setattr(self._model.generation_config, advice, None)

    @torch.inference_mode()
    def logits(self, ids: Tensor, lengths: Tensor, target: Tensor | None = None) -> Tensor:
        positions = positions_from_lengths(lengths, ids.shape[1], "left" if self._causal else "right")
        inputs: dict[str, Tensor] = {"attention_mask": (positions >= 0).long()}  # (B, T)
        if self._causal:
            inputs["position_ids"] = positions.clamp(min=0)
        if target is not None:
            inputs["decoder_input_ids"] = target
        return torch.as_tensor(self._model(ids, **inputs).logits).float()

    @torch.inference_mode()
    def greedy(self, ids: Tensor, n: int) -> Tensor:
        with quiet_transformers():
            generated = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, num_beams=1, pad_token_id=0
            )
        return torch.as_tensor(generated)

    def tokenize(self, text: str) -> list[int] | None:
        if self._tokenizer is None:
            return None
        with quiet_transformers():
            return list(self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """`transformers` without its bars, its advice and its warnings; afterwards it is as it was."""
    transformers: Any = import_module("transformers")
    log = transformers.utils.logging
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield transformers
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()
