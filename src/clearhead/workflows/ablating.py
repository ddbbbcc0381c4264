"""Ablate a run: the loss on a text or on sentence pairs without each head, attention, feed-forward and block."""

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from clearhead import data as texts
from clearhead import inspection
from clearhead.errors import DataError, UsageError
from clearhead.inspection import AblationTable, attention_sites, flops_per_token
from clearhead.models import LanguageModel
from clearhead.workflows.evaluating import text_and_bytes, texts_of_pairs
from clearhead.workflows.hardware import choose_device, enough_memory, threads
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import TASKS, CausalTask
from clearhead.workflows.tasks.causal import body_of
from clearhead.workflows.tasks.translation import pair_evaluation_batches

OPERATIONS = 1.5e12  # floating-point, in all: half a minute on two cores
FEWEST, MOST = 64, 2**16  # tokens, whatever the model's size

Batches = Sequence[Sequence[Tensor]]


def ablate(
    run: str | Path | RunFolder | None = None,
    text: str | Path | None = None,
    *,
    mean: bool = False,
    tokens: int | None = None,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
) -> AblationTable:
    """By how much the loss of a run changes without each of its parts.

    Args:
        run: a folder, a name, or None for the newest.
        text: a text or sentence pairs as in `train`, or a split of a corpus; what was held out by default.
        mean: put the mean of what a part writes in its place; zero by default.
        tokens: predict about so many, spread over the text; by default as many as take half a minute on two cores.
        device: where to compute.
        on_progress: called with how many of the losses are computed, and of how many.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    if tokens is not None and tokens < 1:
        raise UsageError(f"`tokens` is at least 1, not {tokens}")
    opened = open_folder(run)
    config = opened.config
    with threads(config.train.threads), enough_memory("predict fewer `tokens`"):
        model = opened.model().to(choose_device(device))
        limit = tokens or affordable_tokens(model)
        read = _pair_batches if config.objective == "seq2seq" else _text_batches
        batches, bytes_per_token = read(opened, model, text, limit)
        body = None if config.objective == "seq2seq" else body_of(model, config.data, opened.tokenizer)
        return inspection.ablate(
            model, batches, mean=mean, body=body, bytes_per_token=bytes_per_token, on_progress=on_progress
        )


def affordable_tokens(model: LanguageModel) -> int:
    """On how many tokens the losses without each part take half a minute on two cores."""
    passes = 2 + sum(site.module.n_heads + 3 for site in attention_sites(model))  # at least as many as there are parts
    return max(FEWEST, min(MOST, int(OPERATIONS / (passes * flops_per_token(model.config)))))


def _text_batches(
    opened: RunFolder, model: LanguageModel, text: str | Path | None, limit: int
) -> tuple[Batches, float | None]:
    """Windows all along the text, shorter than the context where that is more than all the tokens to predict."""
    tokens, n_bytes = text_and_bytes(opened, text)
    if len(tokens) < 2:
        raise DataError(f"the text is too short to evaluate: it needs at least two tokens and has {len(tokens)}")
    config, kind = opened.config, TASKS[opened.config.objective]
    assert issubclass(kind, CausalTask)
    window = config.model.model_copy(update={"block_size": min(config.model.block_size, limit)})
    shortened = config.model_copy(update={"model": window})
    batches = list(kind.windows(tokens, opened.tokenizer, shortened, limit=limit))
    return batches, None if kind.masks else n_bytes / len(tokens)


def _pair_batches(
    opened: RunFolder, model: LanguageModel, text: str | Path | None, limit: int
) -> tuple[Batches, float | None]:
    pairs = texts.encode_pairs(texts_of_pairs(opened, text, None), *opened.tokenizers)
    return list(pair_evaluation_batches(pairs, opened.tokenizers, model.config, limit=limit)), None
