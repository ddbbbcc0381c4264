"""The interface of an objective: its data, batches, held-out loss, and a sample."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from clearhead import inference
from clearhead.config import DataConfig, RunConfig
from clearhead.data import IGNORED, GrammarScore, Tokenizer
from clearhead.doctor import PreflightReport, Spec
from clearhead.doctor.spec import Kind
from clearhead.inference import Evaluation
from clearhead.interop import SpecialTokens
from clearhead.models import LanguageModel
from clearhead.options import Settings
from clearhead.training import Optimizer, autocast, resolve_precision

Batches = Callable[[int], Sequence[Tensor]]  # step -> the model's inputs and, last, the targets (B, T)
Progress = Callable[[float], None]
Tokenizers = tuple[Tokenizer, Tokenizer]  # of what the model reads and of what it writes; one object where it is one


@dataclass(frozen=True)
class Example:
    """A sample of the model's output on held-out data: text, and figures by name."""

    text: str
    scores: dict[str, float] = field(default_factory=dict)


def declared(model: LanguageModel, kind: Kind, *, fresh: bool) -> Spec:
    """What the doctor is told of a model of ours; tables of n-grams see what has left a window."""
    window = model.config.sliding_window if model.config.longest_ngram == 1 else None
    return Spec(kind=kind, window=window, fresh=fresh)


def own_batches(batches: Iterable[Sequence[Tensor]], rank: int, world_size: int) -> Iterator[Sequence[Tensor]]:
    """A process's batches. All have as many: where some lack one, it is the last of all without its targets."""
    rest = iter(batches)
    while together := tuple(islice(rest, world_size)):
        *inputs, targets = together[min(rank, len(together) - 1)]
        yield (*inputs, targets if rank < len(together) else torch.full_like(targets, IGNORED))


class Task(ABC):
    """An objective over prepared data. Training, planning and recording know nothing else of what is learned.

    Attributes:
        tokenizer: of what the model writes; its special tokens hold for all.
        fingerprint: identifies the content, the cut between training and held-out data, and the tokenizers.
        floor: the lowest loss that is possible, in nats per token, where it is known.
        bytes_per_token: of the held-out text, in UTF-8, where the loss is that of the whole text.
        counted: what the loss is a mean over, for a sentence.
        next_verbs: what a person may do with a finished run: verbs, each with the arguments that follow the run.
    """

    tokenizer: Tokenizer
    fingerprint: str
    floor: float | None = None
    bytes_per_token: float | None = None
    counted: ClassVar[str] = "tokens"
    next_verbs: tuple[tuple[str, ...], ...] = ()

    @classmethod
    @abstractmethod
    def open(
        cls, config: DataConfig, *, tokenizers: Tokenizers | None = None, on_progress: Progress | None = None
    ) -> Self:
        """Prepare the data, with a trained model's tokenizers where they are given."""

    @abstractmethod
    def data_settings(self) -> Settings:
        """The options under which the same data is found again, from any folder."""

    @abstractmethod
    def model_settings(self) -> Settings:
        """What the data decides of the model: vocabularies, and the token that fills up rows."""

    @abstractmethod
    def describe(self) -> str:
        """The data, how it is cut, and what its tokens are, in one line."""

    @abstractmethod
    def fit_to_data(self, config: RunConfig, options: Settings) -> tuple[RunConfig, tuple[str, ...]]:
        """Sizes that suit so much data, where the person left them open, and a sentence on what was changed."""

    @abstractmethod
    def steps_per_pass(self, config: RunConfig) -> float:
        """Steps per pass over the training data."""

    @property
    @abstractmethod
    def held_out_tokens(self) -> int:
        """The number of held-out tokens."""

    @abstractmethod
    def batches(self, config: RunConfig) -> Batches:
        """The batch of every step, a pure function of it."""

    @abstractmethod
    def held_out(self, config: RunConfig, *, limit: int | None = None) -> Iterable[Sequence[Tensor]]:
        """Batches of all that is held out, or of about `limit` targets."""

    @abstractmethod
    def example(self, model: LanguageModel) -> Example:
        """A sample of the model's output on held-out data."""

    def grammar_score(self, model: LanguageModel) -> GrammarScore | None:
        """What the corpus's grammar says of samples of the model, where it is drawn from one that can read."""
        return None

    @abstractmethod
    def preflight(
        self, model: LanguageModel, optimizer: Optimizer, config: RunConfig, *, fresh: bool = True
    ) -> PreflightReport:
        """The preflight of a model before its first step; a trained one, which is not fresh, may have any loss."""

    def body(self, model: LanguageModel) -> Callable[..., Tensor]:
        """The inputs of a batch -> the model's last layer (B, T, D)."""
        return model.body

    def forward(self, model: LanguageModel) -> Callable[..., Tensor]:
        """The inputs of a batch -> logits (B, T, V)."""
        body = self.body(model)
        return model if body == model.body else lambda *inputs: model.head(body(*inputs))

    def evaluate(self, model: LanguageModel, config: RunConfig, *, rank: int = 0, world_size: int = 1) -> Evaluation:
        """The loss on what is held out, as far as `train.eval_tokens` allows, in the precision of the training.

        Of several processes, each reads the batches that are its own: every `world_size`th, from `rank` on.
        """
        batches = own_batches(self.held_out(config, limit=config.train.eval_tokens), rank, world_size)
        with autocast(model.device, resolve_precision(config.train, model.device)):
            return inference.evaluate(model, batches, body=self.body(model))

    @property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers of the model's input and output."""
        return self.tokenizer, self.tokenizer

    @classmethod
    def write_tokenizers(cls, folder: Path, tokenizers: Tokenizers) -> None:
        """Write what `load_tokenizers` reads, as a model of this kind needs it from other readers of the folder."""
        tokenizers[1].save(folder)

    @property
    def special_tokens(self) -> SpecialTokens:
        """What other readers of the run's folder must know."""
        return SpecialTokens(end=self.tokenizer.end_of_document, pad=self.tokenizer.pad)
