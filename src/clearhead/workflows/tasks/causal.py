"""The objective of predicting the next token."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clearhead import data as texts
from clearhead import inference
from clearhead.config import DataConfig, EngineConfig, RunConfig, SamplingConfig
from clearhead.data import CORPORA, GrammarScore, TextData, Tokenizer
from clearhead.doctor import PreflightReport, preflight
from clearhead.errors import UsageError
from clearhead.models import CausalLM, LanguageModel
from clearhead.options import Settings
from clearhead.training import Optimizer, is_sharded
from clearhead.wording import whole_words
from clearhead.workflows.tasks.task import Batches, Example, Progress, Task, Tokenizers, declared

SAMPLE = SamplingConfig(max_new_tokens=160, temperature=0.5, seed=1)  # cool: a young model is easily led astray
READ = 24  # texts that the corpus's grammar reads, sampled as `generate` does if nothing else is said
CSV_NOTE = "a CSV is read as plain text, commas and all; for sentence pairs, write a .tsv of two columns"
TOKENS_AT_ONCE = 8192  # in one batch of an evaluation


class CausalTask(Task):
    """A text in windows; each token's target is the one after it."""

    masks: ClassVar[bool] = False  # whether the tokenizer needs a token to mask with
    next_verbs: tuple[tuple[str, ...], ...] = (("generate",), ("evaluate", "other.txt"))

    def __init__(self, config: DataConfig, prepared: TextData) -> None:
        self.config, self.prepared = config, prepared
        self.tokenizer, self.fingerprint, self.floor = prepared.tokenizer, prepared.fingerprint, prepared.floor
        self.bytes_per_token = None if self.masks else prepared.bytes_per_token

    @classmethod
    def open(
        cls, config: DataConfig, *, tokenizers: Tokenizers | None = None, on_progress: Progress | None = None
    ) -> Self:
        """Prepare the text, with a trained model's tokenizer where one is given."""
        known = None if tokenizers is None else tokenizers[1]
        prepared = texts.prepare(config, tokenizer=known, masks=cls.masks, on_progress=on_progress)
        return cls(config, prepared if known is None else replace(prepared, tokenizer=known))

    def data_settings(self) -> Settings:
        return {"source": self.prepared.source}

    def model_settings(self) -> Settings:
        return {"vocab_size": self.tokenizer.vocab_size}

    def describe(self) -> str:
        prepared = self.prepared
        documents = f" in {prepared.n_documents:,} documents" if prepared.n_documents > 1 else ""
        alphabet = f", {prepared.distinct_characters} distinct" if prepared.distinct_characters else ""
        cut = f"{prepared.train_characters:,} training, {prepared.val_characters:,} validation"
        n_characters = prepared.train_characters + prepared.val_characters
        notes = (*prepared.notes, *((CSV_NOTE,) if prepared.source.lower().endswith(".csv") else ()))
        return "; ".join((f"text: {n_characters:,} characters{documents}{alphabet} ({cut})", *notes))

    def fit_to_data(self, config: RunConfig, options: Settings) -> tuple[RunConfig, tuple[str, ...]]:
        """A block that fits the text several times, and a batch that is not the whole of it."""
        n_train, block = len(self.prepared.train), config.model.block_size
        longest = max(1, min(n_train // 4, len(self.prepared.val) - 1))
        if "block_size" in options.get("model", {}):
            if block >= n_train:
                raise UsageError(
                    f"`model.block_size` {block} is longer than the training text of {n_train} tokens; "
                    f"at most {longest} makes sense here"
                )
        else:
            block = min(block, _power_of_two_below(longest) if longest < block else block)
        batch = config.train.batch_size
        if "batch_size" not in options.get("train", {}):
            batch = min(batch, max(1, n_train // (2 * block)))
        if (block, batch) == (config.model.block_size, config.train.batch_size):
            return config, ()
        model = {"block_size": block}
        if config.model.sliding_window is not None and "sliding_window" not in options.get("model", {}):
            model["sliding_window"] = min(config.model.sliding_window, block)
        fitted = RunConfig.read(config.model_dump(), {"model": model, "train": {"batch_size": batch}})
        return fitted, (f"the text is short ({n_train:,} training tokens): block_size {block}, batch_size {batch}",)

    def steps_per_pass(self, config: RunConfig) -> float:
        return len(self.prepared.train) / (config.train.batch_size * config.model.block_size)

    @property
    def held_out_tokens(self) -> int:
        return len(self.prepared.val)

    def batches(self, config: RunConfig) -> Batches:
        block, rows = config.model.block_size, config.train.batch_size
        tokens, seed = self.prepared.train, config.seed
        return lambda step: texts.training_batch(tokens, block_size=block, batch_size=rows, seed=seed, step=step)

    def held_out(self, config: RunConfig, *, limit: int | None = None) -> Iterable[Sequence[Tensor]]:
        return self.windows(self.prepared.val, self.tokenizer, config, limit=limit)

    @classmethod
    def windows(
        cls,
        tokens: NDArray[np.integer],
        tokenizer: Tokenizer,
        config: RunConfig,
        *,
        rows: int | None = None,
        limit: int | None = None,
    ) -> Iterable[Sequence[Tensor]]:
        """Batches of `rows` windows side by side, to evaluate on any text of at least two tokens."""
        block, rows = window_shape(config.model.block_size, len(tokens), rows)
        return texts.evaluation_batches(tokens, block_size=block, batch_size=rows, limit=limit)

    def example(self, model: LanguageModel) -> Example:
        assert isinstance(model, CausalLM)
        engine = EngineConfig(engine="eager" if is_sharded(model) else "auto")  # native code reads whole weights
        return Example(whole_words(inference.generate(model, self.tokenizer, [""], SAMPLE, engine=engine)[0][0]))

    def grammar_score(self, model: LanguageModel) -> GrammarScore | None:
        """Each sample begins behind the end of another text; what grows longer than any of the grammar's is cut off."""
        corpus = CORPORA.get(self.config.source)
        if self.masks or corpus is None or corpus.grammar is None:
            return None
        assert isinstance(model, CausalLM)
        grammar = corpus.grammar
        per_token = self.prepared.train_characters / len(self.prepared.train)
        most = math.ceil(grammar.longest / per_token)
        sampling = SamplingConfig(max_new_tokens=most, stop=(grammar.end,), num_samples=READ, seed=1)
        texts = inference.generate(model, self.tokenizer, [grammar.end], sampling)[0]
        whole = [len(text) < 0.95 * grammar.longest for text in texts]
        return grammar.score([text + grammar.end * is_whole for text, is_whole in zip(texts, whole, strict=True)])

    def preflight(
        self, model: LanguageModel, optimizer: Optimizer, config: RunConfig, *, fresh: bool = True
    ) -> PreflightReport:
        inputs, targets = self.batches(config)(0)
        moved = optimizer.parameters.values()
        return preflight(
            model, inputs, targets, moved, spec=declared(model, "causal", fresh=fresh), forward=self.forward(model)
        )

    def body(self, model: LanguageModel) -> Callable[..., Tensor]:
        return body_of(model, self.config, self.tokenizer)


def body_of(model: LanguageModel, config: DataConfig, tokenizer: Tokenizer) -> Callable[..., Tensor]:
    """ids (B, T) -> (B, T, D), documents apart from each other where the model was trained so."""
    end = tokenizer.end_of_document
    if end is None or not config.document_mask:
        return model.body
    return lambda ids, **options: model.body(ids, documents=texts.document_numbers(ids, end), **options)


def window_shape(block_size: int, n_tokens: int, rows: int | None = None) -> tuple[int, int]:
    """The length of a window and how many go into a batch, for an evaluation of so many tokens."""
    block = min(block_size, n_tokens - 1)
    return block, rows or max(1, TOKENS_AT_ONCE // block)


def _power_of_two_below(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)
