"""Text from a run."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, overload

from clearhead import inference
from clearhead.config import GenerationConfig
from clearhead.errors import ArgumentError, DataError, UsageError
from clearhead.inference import Piece
from clearhead.models import CausalLM
from clearhead.options import option
from clearhead.pages import pretty
from clearhead.wording import call
from clearhead.workflows.hardware import choose_device, enough_memory, threads
from clearhead.workflows.runs.find import all_runs, open_folder
from clearhead.workflows.runs.folder import RunFolder

SMALL = 5_000_000  # parameters; a smaller model is faster on one thread than on two

Which = str | Path | RunFolder | None
Prompts = list[str] | tuple[str, ...]  # not any sequence: a string is one, too


class Text(str):
    """A generated text: a str like any other, but a notebook shows its lines instead of spelling out each `\\n`."""

    __slots__ = ()

    _repr_pretty_ = pretty


@overload
def generate(run: Which, prompt: str = "", *, num_samples: Literal[1] = 1, **options: Any) -> str: ...
@overload
def generate(run: Which, prompt: Prompts, *, num_samples: Literal[1] = 1, **options: Any) -> list[str]: ...
@overload
def generate(run: Which, prompt: str = "", *, num_samples: int, **options: Any) -> list[str]: ...
@overload
def generate(run: Which, prompt: Prompts, *, num_samples: int, **options: Any) -> list[list[str]]: ...
def generate(
    run: Which = None,
    prompt: str | Prompts = "",
    *,
    num_samples: int = 1,
    device: str = "auto",
    on_text: Callable[[Piece], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    **options: object,
) -> str | list[str] | list[list[str]]:
    """Continue a prompt, or each of a list of prompts, with the run's model.

    Args:
        run: a folder, a name, or None for the newest.
        prompt: the beginning of the text; an empty one starts a new text.
        num_samples: how many texts to write for each prompt.
        device: where to compute.
        on_text: called with each new piece of text as it is written.
        on_notice: called with sentences to show the user.
        options: as in `GenerationConfig`: max_new_tokens=200, temperature=0.8, seed=1... A `json_schema` may be a dict.

    Returns:
        For a prompt its text, which begins with it; for a list of prompts the list of their texts. With `num_samples`
        above 1, the list of its texts in place of each text.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    prompts = _texts(prompt)
    if isinstance(options.get("json_schema"), dict):  # the names of its properties are none of options
        options["json_schema"] = json.dumps(options["json_schema"])
    config = GenerationConfig.read(options, {"num_samples": num_samples})
    opened = _open(run, prompt)
    tokenizer, model = opened.tokenizer, writer_of(opened, device)
    draft = None if config.draft in (None, "ngrams") else draft_model(open_folder(config.draft), opened, device)
    n_parameters = sum(p.numel() for p in model.parameters())
    few = len(prompts) * config.num_samples == 1 and n_parameters < SMALL
    with threads(1 if few else None), enough_memory("lower `num_samples` or `max_new_tokens`"):
        written = inference.generate(
            model, tokenizer, prompts, config, engine=config, draft=draft, on_text=on_text, on_notice=on_notice
        )
    endings = [text == "" for samples in written for text in samples]
    if any(endings) and on_notice and not config.stop:
        share = f" in {sum(endings):,} of {len(endings):,} texts" if len(endings) > 1 else ""
        on_notice(f"the model adds nothing to the prompt{share}; give another `seed`, or another prompt")
    texts: list[list[str]] = [
        [Text(start + text) for text in samples] for start, samples in zip(prompts, written, strict=True)
    ]
    shaped = texts if config.num_samples > 1 else [text for [text] in texts]
    return shaped[0] if isinstance(prompt, str) else shaped


def _texts(prompt: object) -> list[str]:
    prompts: list[str] = []
    for text in prompt if isinstance(prompt, Iterable) and not isinstance(prompt, str) else [prompt]:
        if not isinstance(text, str):
            held = type(prompt).__name__ + ("" if text is prompt else f" of {type(text).__name__}")
            raise ArgumentError(f"a prompt is a text or a list of texts, not {held}; for ids take `model.generate`")
        prompts.append(text)
    return prompts


def _open(run: Which, prompt: object) -> RunFolder:
    try:
        return open_folder(run)
    except DataError as error:
        if isinstance(run, str) and prompt == "" and all_runs():
            newest = f"to continue that text with the newest run: {call('generate', prompt=run)}"
            raise DataError(f"{error}; {newest}") from None
        raise


def writer_of(run: RunFolder, device: str) -> CausalLM:
    """The run's model, on the device; it must be one that continues texts."""
    model = run.model().to(choose_device(device))
    if not isinstance(model, CausalLM):
        raise UsageError(f"{run.folder} cannot continue a text; use translate or fill, which it was trained for")
    return model


def draft_model(run: RunFolder, writer: RunFolder, device: str) -> CausalLM:
    """The draft model of speculative decoding."""
    model = writer_of(run, device)
    same = run.config.model.vocab_size == writer.config.model.vocab_size
    if not same or run.tokenizer.fingerprint != writer.tokenizer.fingerprint:
        advice = option("data.tokenizer", str(writer.folder / "tokenizer.json"))
        raise UsageError(
            f"draft: the tokenizer of {run.folder} is not that of {writer.folder}, so it cannot guess its tokens; "
            f"train the smaller run on the same text with {advice}"
        )
    return model
