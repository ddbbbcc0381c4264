"""Where the heads of a run's model look when it reads a text."""

from collections.abc import Callable
from pathlib import Path

from clearhead import inspection
from clearhead.inspection import AttentionView
from clearhead.inspection.attention.view import default_kind
from clearhead.inspection.capture.sites import AttentionKind
from clearhead.options import has_arguments
from clearhead.workflows.hardware import enough_memory
from clearhead.workflows.prompts import Prompt, read_prompt
from clearhead.workflows.runs.folder import RunFolder


@has_arguments()
def attend(
    run: str | Path | RunFolder | None = None,
    text: str = "",
    *,
    target: str | None = None,
    of: AttentionKind | None = None,
    layer: int | None = None,
    head: int | None = None,
    device: str = "auto",
    on_notice: Callable[[str], None] | None = None,
) -> AttentionView:
    """Where the heads of the run's model look when it reads the text.

    Args:
        run: a folder, a name, or None for the newest.
        text: for a translator, the sentence in the source language.
        target: for a translator, the translation to look at; its own without it.
        of: `self`, `cross` or `encoder`; by default `cross` for a translator, else `self`.
        layer, head: counted from 0; both, or neither for an overview.
        device: where to compute.
        on_notice: called with a sentence where only a part of the text is read.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    with enough_memory("give a shorter text"):
        prompt = read_prompt(run, text, target, device=device, on_notice=on_notice)
        return attention_of(prompt, of, layer, head)


def attention_of(
    prompt: Prompt, of: AttentionKind | None = None, layer: int | None = None, head: int | None = None
) -> AttentionView:
    """The same of a prompt that is read already.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    of = of or default_kind(prompt.model)
    queries, keys = sides(prompt, of)
    return inspection.attend(prompt.model, prompt.inputs, queries, keys, of=of, layer=layer, head=head)


def sides(prompt: Prompt, of: AttentionKind) -> tuple[list[str], list[str]]:
    """A text for each token that attends, and for each that is attended to."""
    sources = prompt.source_labels or prompt.labels
    return (sources if of == "encoder" else prompt.labels), (prompt.labels if of == "self" else sources)
