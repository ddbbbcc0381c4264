"""The objective of translating sentences."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from torch import Tensor

from clearhead import data as texts
from clearhead import inference
from clearhead.config import DataConfig, ModelConfig, RunConfig, TranslationConfig
from clearhead.data import PAIR_CORPORA, GrammarScore, PairBatches, PairData, Tokenizer
from clearhead.doctor import PreflightReport, preflight
from clearhead.models import EncoderDecoder, LanguageModel
from clearhead.options import Settings
from clearhead.training import Optimizer
from clearhead.workflows.tasks.task import Batches, Example, Progress, Task, Tokenizers, declared
from clearhead.workflows.tasks.typed import easily_typed

EXAMINED = 200  # held-out sentences that are translated, greedily, for the curve
SHOWN = 3  # of them
ROOM = 8192  # tokens in a batch of an evaluation, source and target together
T = TypeVar("T")
SOURCE_TOKENIZER = "source_tokenizer"  # the name of its files, where it is not the target's


class TranslationTask(Task):
    """Pairs of sentences; each token of the target is predicted from the source and the target before it."""

    counted = "target tokens"
    next_verbs = (("translate", "a sentence"), ("evaluate", "--source", "a.txt", "--target", "b.txt"))

    def __init__(self, config: DataConfig, prepared: PairData) -> None:
        self.config, self.prepared = config, prepared
        self.source_tokenizer, self.tokenizer = prepared.source_tokenizer, prepared.target_tokenizer
        self.fingerprint = prepared.fingerprint
        if example := easily_typed(source for source, _ in prepared.val_texts):
            self.next_verbs = (("translate", example), *self.next_verbs[1:])
        self._laid_out: tuple[tuple[int, ...], PairBatches] | None = None

    @classmethod
    def open(
        cls, config: DataConfig, *, tokenizers: Tokenizers | None = None, on_progress: Progress | None = None
    ) -> Self:
        """Prepare the pairs, with a trained model's tokenizers where they are given."""
        return cls(config, texts.prepare_pairs(config, tokenizers=tokenizers, on_progress=on_progress))

    def data_settings(self) -> Settings:
        return {"source": self.prepared.source, "target": self.prepared.target}

    def model_settings(self) -> Settings:
        joint = self.source_tokenizer is self.tokenizer
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "source_vocab_size": None if joint else self.source_tokenizer.vocab_size,
            "pad_id": self.tokenizer.pad,
        }

    def describe(self) -> str:
        n_train, n_val = len(self.prepared.train), len(self.prepared.val)
        return "; ".join((f"pairs: {n_train:,} for training, {n_val:,} for validation", *self.prepared.notes))

    def fit_to_data(self, config: RunConfig, options: Settings) -> tuple[RunConfig, tuple[str, ...]]:
        """A batch that is not the whole of the pairs; how many are too long for a block, and how much is padding."""
        reasons: list[str] = []
        if "batch_size" not in options.get("train", {}):
            n_tokens = self.prepared.train.n_tokens
            rows = min(config.train.batch_size, max(1, n_tokens // (2 * config.model.block_size)))
            if rows < config.train.batch_size:
                config = RunConfig.read(config.model_dump(), {"train": {"batch_size": rows}})
                reasons.append(f"the pairs are few ({n_tokens:,} training tokens): batch_size {rows}")
        batches = self._pair_batches(config)
        next(iter(self.held_out(config, limit=1)))  # refuses held-out pairs of which every one is too long
        if batches.n_too_long:
            reasons.append(
                f"{batches.n_too_long:,} training pairs have a side of more than {config.model.block_size} tokens and "
                "are left out; raise `model.block_size` to train on them"
            )
        room = config.train.batch_size * config.model.block_size
        share = f"{batches.padding:.1%} of it padding"
        reasons.append(f"batches: {batches.n_batches:,} in a pass, of at most {room:,} tokens on both sides, {share}")
        return config, tuple(reasons)

    def steps_per_pass(self, config: RunConfig) -> float:
        return self._pair_batches(config).n_batches

    @property
    def held_out_tokens(self) -> int:
        return int(self.prepared.val.target.lengths.sum())

    def batches(self, config: RunConfig) -> Batches:
        return self._pair_batches(config)

    def held_out(self, config: RunConfig, *, limit: int | None = None) -> Iterable[Sequence[Tensor]]:
        tokenizers = self.source_tokenizer, self.tokenizer
        return pair_evaluation_batches(self.prepared.val, tokenizers, config.model, limit=limit)

    def example(self, model: LanguageModel) -> Example:
        """BLEU of a sample of the held-out pairs, translated greedily, and some of them to read."""
        sources, references = zip(*spread(self.prepared.val_texts), strict=True)
        written = self._translated(model, sources)
        shown = zip(sources[:SHOWN], written, references, strict=False)
        lines = (f"{source}\n  -> {text}\n  (reference: {reference})" for source, text, reference in shown)
        scores = {"bleu": inference.corpus_scores(written, references).bleu} if inference.can_score() else {}
        return Example("\n".join(lines), scores)

    def grammar_score(self, model: LanguageModel) -> GrammarScore | None:
        read = grammar_of(self.config)
        return read and read(self._translated(model, [source for source, _ in spread(self.prepared.val_texts)]))

    def _translated(self, model: LanguageModel, sources: Sequence[str]) -> list[str]:
        """Greedy translations."""
        assert isinstance(model, EncoderDecoder)
        config = TranslationConfig(beam_size=1, length_penalty=0, engine="eager")
        translations = inference.translate(model, self.source_tokenizer, self.tokenizer, sources, config)
        return [best[0].text for best in translations]

    def preflight(
        self, model: LanguageModel, optimizer: Optimizer, config: RunConfig, *, fresh: bool = True
    ) -> PreflightReport:
        """The batch's targets with one source: which token may see which does not depend on it."""
        source, inputs, targets = self.batches(config)(0)
        first = source[:1].to(model.device)
        inputs = inputs.masked_fill(
            inputs == self.prepared.pad, self.prepared.end
        )  # so every token is followed by its target
        moved = optimizer.parameters.values()
        return preflight(
            model,
            inputs,
            targets,
            moved,
            spec=declared(model, "seq2seq", fresh=fresh),
            forward=lambda ids: model(first.expand(len(ids), -1), ids),
        )

    @property
    def tokenizers(self) -> Tokenizers:
        return self.source_tokenizer, self.tokenizer

    @classmethod
    def write_tokenizers(cls, folder: Path, tokenizers: Tokenizers) -> None:
        source, target = tokenizers
        target.save(folder, append_end=True)
        if source is not target:
            source.save(folder, append_end=True, name=SOURCE_TOKENIZER)

    def _pair_batches(self, config: RunConfig) -> PairBatches:
        """Laid out once for the same options: the plan, the preflight and the training ask for them in turn."""
        room, longest = config.train.batch_size * config.model.block_size, config.model.block_size
        start = config.model.first_token(self.prepared.end)
        key = room, longest, start, config.seed
        if self._laid_out is None or self._laid_out[0] != key:
            pairs, pad = self.prepared.train, self.prepared.pad
            batches = PairBatches(pairs, room=room, longest=longest, pad=pad, start=start, seed=config.seed)
            self._laid_out = key, batches
        return self._laid_out[1]


def spread(items: Sequence[T]) -> Sequence[T]:
    """Some of the held-out pairs, from all along the way."""
    return items[:: max(1, len(items) // EXAMINED)][:EXAMINED]


def grammar_of(config: DataConfig) -> Callable[[Sequence[str]], GrammarScore] | None:
    """What reads translations, where the pairs are drawn from a grammar that can."""
    corpus = PAIR_CORPORA.get(config.source.partition(":")[0])
    return None if corpus is None or config.reverse else corpus.score


def load_tokenizers(folder: Path) -> Tokenizers:
    """Source's and target's tokenizer in a run's folder; the same object where one serves both."""
    target = Tokenizer.load(folder, keep_frame=True)
    own = folder / f"{SOURCE_TOKENIZER}.json"
    return (Tokenizer.load(own, keep_frame=True) if own.is_file() else target), target


def pair_evaluation_batches(
    pairs: texts.EncodedPairs,
    tokenizers: tuple[Tokenizer, Tokenizer],
    model: ModelConfig,
    *,
    limit: int | None = None,
) -> Iterable[Sequence[Tensor]]:
    """All pairs once that the model can read, or about `limit` target tokens of them."""
    end, pad = texts.special_tokens(tokenizers)
    start, longest = model.first_token(end), model.block_size
    return texts.evaluation_pair_batches(pairs, room=ROOM, longest=longest, pad=pad, start=start, limit=limit)
