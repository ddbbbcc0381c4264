"""Evaluate a run: loss on a text, on masked tokens or on sentence pairs, and BLEU of translations."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clearhead import data as texts
from clearhead import inference
from clearhead.config import TranslationConfig
from clearhead.data import GrammarScore
from clearhead.errors import DataError, UsageError
from clearhead.models import EncoderDecoder, LanguageModel
from clearhead.options import has_arguments
from clearhead.pages import pretty
from clearhead.workflows.hardware import choose_device, enough_memory, threads
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import TASKS, CausalTask, TranslationTask
from clearhead.workflows.tasks.causal import body_of
from clearhead.workflows.tasks.translation import grammar_of, pair_evaluation_batches, spread

LENGTHS = (-1, 5, 10, 15, 20, 30)  # limits between groups, in words of the source sentence


@dataclass(frozen=True)
class Score:
    """Loss in nats per token, perplexity, and the number of predicted tokens.

    `bits_per_byte` of UTF-8 compares models over tokenizers; a model that fills in masked tokens has none. `grammar`
    is what the corpus's grammar says of samples, where the run was trained on one that can read and is evaluated on it.
    """

    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    grammar: GrammarScore | None = None

    def __str__(self) -> str:
        """As `clearhead evaluate` prints it."""
        lines = [f"loss           {self.loss:.4f} nats per token", f"perplexity     {self.perplexity:.3f}"]
        lines += [] if self.bits_per_byte is None else [f"bits per byte  {self.bits_per_byte:.4f}"]
        lines += [f"tokens         {self.tokens:,}"]
        return "\n".join(lines if self.grammar is None else [*lines, self.grammar.line()])

    _repr_pretty_ = pretty


@dataclass(frozen=True)
class LengthScore:
    """The sentences of a range of lengths, in words of the source."""

    length: str
    sentences: int
    bleu: float
    exact: float


@dataclass(frozen=True)
class TranslationScore:
    """BLEU and chrF by sacreBLEU, whose signature says how they were counted, and the loss in nats per token.

    `exact` is the share of translations that are their reference to the letter. `grammar` is what the corpus's
    grammar says of some of the translations, where it can read.
    """

    loss: float
    bleu: float
    chrf: float
    signature: str
    sentences: int
    exact: float
    by_length: tuple[LengthScore, ...]
    grammar: GrammarScore | None = None

    def __str__(self) -> str:
        """As `clearhead evaluate` prints it."""
        lines = [
            f"BLEU       {self.bleu:.2f}",
            f"chrF       {self.chrf:.2f}",
            f"exact      {self.exact:.1%} of the translations equal the reference exactly",
            f"loss       {self.loss:.4f} nats per token",
            f"sentences  {self.sentences:,}",
            f"signature  {self.signature}",
            "",
            f"{'source words':<14}{'sentences':>10}{'BLEU':>8}{'exact':>9}",
        ]
        for group in self.by_length:
            lines.append(f"{group.length:<14}{group.sentences:>10,}{group.bleu:>8.2f}{group.exact:>9.1%}")
        return "\n".join(lines if self.grammar is None else [*lines, self.grammar.line()])

    _repr_pretty_ = pretty


@has_arguments()
def evaluate(
    run: str | Path | RunFolder | None = None,
    source: str | Path | None = None,
    target: str | Path | None = None,
    *,
    options: Mapping[str, object] | None = None,
    device: str = "auto",
    on_notice: Callable[[str], None] | None = None,
) -> Score | TranslationScore:
    """Evaluate a run on a text, on sentence pairs, or on its held-out data; the batch size does not matter.

    Args:
        run: a folder, a name, or None for the newest.
        source: as in `train`, also one split of a corpus, such as 'multi30k:test_2016_flickr'; None: what was held out.
        target: the file of references, where `source` is the file of sentences to translate.
        options: for a translator as in `TranslationConfig`, but the engine `auto` is `eager`, so that a score does not
            depend on what is installed; for a text, `batch_size` windows are read at once.
        device: where to compute.
        on_notice: called with sentences to show the user.

    Raises:
        ClearheadError: one sentence on what is wrong.
    """
    config = TranslationConfig.read(options or {})
    if config.engine == "auto":
        config = config.model_copy(update={"engine": "eager"})
    batch_size = config.batch_size if "batch_size" in (options or {}) else None
    opened = open_folder(run)
    objective = opened.config.objective
    if target is not None and objective != "seq2seq":
        raise UsageError(f"{opened.folder} is no translator, so it takes no `target`; give one text")
    if objective == "seq2seq":
        inference.require_sacrebleu()  # before the work, not after it
    for file in (source, target):
        if file is not None and on_notice is not None and (pipe := texts.pipe_of(str(file))):
            on_notice(f"reading {pipe}: waiting for it to be written to, and closed")
    advice = "the model needs a machine with more" if batch_size == 1 else "lower `batch_size`, to 1 if need be"
    with threads(opened.config.train.threads), enough_memory(advice):
        model = opened.model().to(choose_device(device))
        if objective == "seq2seq":
            return _score_pairs(opened, model, texts_of_pairs(opened, source, target), config, on_notice)
        return _score_text(opened, model, source, batch_size)


def _score_text(opened: RunFolder, model: LanguageModel, source: str | Path | None, batch_size: int | None) -> Score:
    """Every token but the first is predicted once, from at most block_size tokens before it; or masked ones are."""
    tokens, n_bytes = text_and_bytes(opened, source)
    if len(tokens) < 2:
        raise DataError(f"the text is too short to evaluate: it needs at least two tokens and has {len(tokens)}")
    config, tokenizer, kind = opened.config, opened.tokenizer, TASKS[opened.config.objective]
    assert issubclass(kind, CausalTask)
    batches = kind.windows(tokens, tokenizer, config, rows=batch_size)
    evaluation = inference.evaluate(model, batches, body=body_of(model, config.data, tokenizer))
    bits = None if kind.masks else evaluation.bits_per_byte(n_bytes)
    grammar = opened.task().grammar_score(model) if source is None else None
    return Score(evaluation.loss, evaluation.perplexity, bits, evaluation.tokens, grammar)


def text_and_bytes(opened: RunFolder, source: str | Path | None) -> tuple[NDArray[np.integer], int]:
    """The ids of the text, or of what was held out, and its bytes in UTF-8."""
    if source is not None:
        return texts.encode_for_evaluation(str(source), opened.tokenizer, column=opened.config.data.text_column)
    task = opened.task()
    assert isinstance(task, CausalTask)
    return task.prepared.val, task.prepared.val_bytes


def _score_pairs(
    opened: RunFolder,
    model: LanguageModel,
    pairs: Sequence[tuple[str, str]],
    config: TranslationConfig,
    on_notice: Callable[[str], None] | None,
) -> TranslationScore:
    """The loss leaves out pairs that are longer than the model can read; the translations are of what it can."""
    assert isinstance(model, EncoderDecoder)
    source_tokenizer, tokenizer = opened.tokenizers
    encoded = texts.encode_pairs(pairs, source_tokenizer, tokenizer)
    evaluation = inference.evaluate(model, pair_evaluation_batches(encoded, opened.tokenizers, model.config))
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    translated = inference.translate(model, source_tokenizer, tokenizer, sources, config, on_notice=on_notice)
    written = [best[0].text for best in translated]
    scores = inference.corpus_scores(written, references)
    read = grammar_of(opened.config.data)
    return TranslationScore(
        evaluation.loss,
        *scores,
        sentences=len(pairs),
        exact=_exact(written, references),
        by_length=tuple(_by_length(sources, written, references)),
        grammar=read and read(spread(written)),
    )


def texts_of_pairs(opened: RunFolder, source: str | Path | None, target: str | Path | None) -> list[tuple[str, str]]:
    """The sentence pairs in these files, or those that were held out."""
    if source is not None:
        return texts.read_pairs(
            str(source), None if target is None else str(target), reverse=opened.config.data.reverse
        )
    if target is not None:
        raise UsageError("`target` holds the references for a `source`; give that as well")
    task = opened.task()
    assert isinstance(task, TranslationTask)
    return list(task.prepared.val_texts)


def _exact(written: Sequence[str], references: Sequence[str]) -> float:
    return sum(text == reference for text, reference in zip(written, references, strict=True)) / len(references)


def _by_length(sources: Sequence[str], written: Sequence[str], references: Sequence[str]) -> list[LengthScore]:
    scores = []
    for low, high in pairwise((*LENGTHS, math.inf)):
        indices = [index for index, source in enumerate(sources) if low < len(source.split()) <= high]
        if indices:
            some = [written[index] for index in indices], [references[index] for index in indices]
            name = f"over {low}" if high == math.inf else f"up to {high}" if low < 0 else f"{low + 1} to {high}"
            scores.append(LengthScore(name, len(indices), inference.corpus_scores(*some).bleu, _exact(*some)))
    return scores
