"""What a run's model expects at each position of a text."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from clearhead import inspection
from clearhead.data import Tokenizer
from clearhead.inference.text_stream import INCOMPLETE
from clearhead.inspection import Prediction
from clearhead.options import has_arguments
from clearhead.workflows.hardware import enough_memory
from clearhead.workflows.prompts import PART, Prompt, read_prompt, token_labels
from clearhead.workflows.runs.folder import RunFolder


@has_arguments()
def predict(
    run: str | Path | RunFolder | None = None,
    text: str = "",
    *,
    target: str | None = None,
    top_k: int = 10,
    lens: bool = False,
    device: str = "auto",
    on_notice: Callable[[str], None] | None = None,
) -> Prediction:
    """What the run's model expects at each position of the text, and how the text surprises it.

    Args:
        run: a folder, a name, or None for the newest.
        text: for a translator, the sentence in the source language; for a masked model, with or without [MASK]s.
        target: for a translator, the translation to look at; its own without it.
        top_k: how many of the likeliest tokens to keep at each position.
        lens: also look between the layers.
        device: where to compute.
        on_notice: called with a sentence where only a part of the text is read.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    with enough_memory("give a shorter text"):
        prompt = read_prompt(run, text, target, device=device, on_notice=on_notice)
        return prediction_of(prompt, top_k=top_k, lens=lens)


def prediction_of(prompt: Prompt, *, top_k: int = 10, lens: bool = False) -> Prediction:
    """The same of a prompt that is read already.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    return inspection.predict(
        prompt.model,
        prompt.inputs,
        prompt.labels,
        prompt.following,
        speller(prompt.tokenizer),
        objective=prompt.run.config.objective,
        top_k=top_k,
        lens=lens,
    )


def speller(tokenizer: Tokenizer) -> Callable[[int | None, int], str]:
    """The text of a token after another: what it adds; a label where both are parts of an unfinished character."""

    @cache
    def spell(before: int | None, token: int) -> str:
        if token >= tokenizer.vocab_size:  # a model may have room for more than there are
            return f"⟨{token}⟩"
        label = token_labels(tokenizer, [token] if before is None else [before, token])[-1]
        return label.lstrip(INCOMPLETE) or PART  # `before` may end a character whose beginning is not decoded here

    return spell
