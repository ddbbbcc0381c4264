"""How well a run predicts a text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from clearhead import data as texts
from clearhead import inference
from clearhead.errors import DataError, UsageError
from clearhead.models import LanguageModel
from clearhead.workflows.machine import choose_device, enough_memory, threads
from clearhead.workflows.run import Run, open_run

TOKENS_AT_ONCE = 8192  # in one batch


@dataclass(frozen=True)
class Score:
    """Loss in nats per token, perplexity, bits per byte of UTF-8, and how many tokens were predicted."""

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int


def evaluate(
    run: str | Path | Run | None = None,
    source: str | Path | None = None,
    *,
    batch_size: int | None = None,
    device: str = "auto",
) -> Score:
    """The run's loss on a text, or on the text that it held out; the same whatever the batch size.

    Every token but the first is predicted once, from at most block_size tokens before it.

    Args:
        run: a folder, a name, or None for the newest.
        source: a text as in `train`; None: the held-out one.
        batch_size: windows at once.
        device: where to compute.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"--batch-size is a number of windows, at least 1, not {batch_size}")
    opened = open_run(run)
    config, tokenizer = opened.config, opened.tokenizer
    if source is None:
        prepared = opened.text()
        tokens, n_bytes = prepared.val, prepared.val_bytes
    else:
        tokens, n_bytes = texts.encode_for_evaluation(str(source), tokenizer)
    isolate = tokenizer.end_of_document if config.data.isolate_documents else None
    advice = "the model needs a machine with more" if batch_size == 1 else "lower --batch-size, to 1 if need be"
    with threads(config.train.threads), enough_memory(advice):
        model = opened.model().to(choose_device(device))
        result = mean_loss(model, tokens, batch_size=batch_size, isolate=isolate)
    return Score(result.loss, result.perplexity, result.bits_per_byte(n_bytes), result.tokens)


def mean_loss(
    model: LanguageModel,
    tokens: NDArray[Any],
    *,
    batch_size: int | None = None,
    limit: int | None = None,
    isolate: int | None = None,
) -> inference.Evaluation:
    """The loss over all tokens but the first, in windows side by side.

    Args:
        model: evaluated without dropout.
        tokens: ids (N,).
        batch_size: windows at once.
        limit: stop at about so many tokens.
        isolate: the id that ends a document, where documents do not see each other.

    Raises:
        DataError: there are fewer than two tokens.
    """
    if len(tokens) < 2:
        raise DataError(f"the text is too short to evaluate: it needs at least two tokens and has {len(tokens)}")
    block = min(model.config.block_size, len(tokens) - 1)
    batch_size = batch_size or max(1, TOKENS_AT_ONCE // block)
    batches = texts.evaluation_batches(tokens, block_size=block, batch_size=batch_size, limit=limit)
    return inference.evaluate(model, batches, isolate=isolate)
