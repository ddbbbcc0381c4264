"""A run as people use it: its folder, and the verbs that work on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from clearhead.errors import ClearheadError, UsageError
from clearhead.inspection import AttentionView, LossPlot, Memorization, Prediction, TraceTable
from clearhead.inspection.capture.sites import AttentionKind
from clearhead.inspection.notebook import show_training
from clearhead.options import has_arguments
from clearhead.pages import fragment
from clearhead.workflows import attending, exporting, generating, predicting, tracing
from clearhead.workflows.evaluating import Score, TranslationScore, evaluate
from clearhead.workflows.filling import fill
from clearhead.workflows.memorizing import memorization
from clearhead.workflows.runs.find import open_folder
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.history import History, Row, rows
from clearhead.workflows.runs.report import report_of
from clearhead.workflows.translating import translate


class Run(RunFolder):
    """A training run on disk; its folder is also a Hugging Face folder where the architecture has an equivalent."""

    generate = generating.generate  # the verb itself: its first argument is the run
    export = exporting.export

    def encode(self, text: str) -> Tensor:
        """The token ids of a text, (1, T), as `run.model()` reads them; of a translator's source without its end."""
        return torch.tensor([list(map(int, self.tokenizers[0].encode(text)))])

    def evaluate(self, source: str | None = None, target: str | None = None) -> Score | TranslationScore:
        """How well it does on a text or on sentence pairs, or on what it held out."""
        return evaluate(self, source, target)

    @overload
    def translate(self, sentences: str, **options: object) -> str: ...
    @overload
    def translate(self, sentences: list[str] | tuple[str, ...], **options: object) -> list[str]: ...
    def translate(self, sentences: str | list[str] | tuple[str, ...], **options: object) -> str | list[str]:
        """The best translation of a sentence, or of each of several; options as in `TranslationConfig`.

        Raises:
            UsageError: several translations per sentence are asked for, which `clearhead.translate` returns.
        """
        if options.get("n_best", 1) != 1:
            raise UsageError("`run.translate` gives the best translation; for several, take `clearhead.translate`")
        best = [translations[0].text for translations in translate(self, sentences, options)]
        return best[0] if isinstance(sentences, str) else best

    def memorization(self, texts: str | Sequence[str], *, n: int = 20) -> Memorization:
        """What is copied from the training text: the share of n-grams of `n` tokens, and the longest span."""
        return memorization(self, texts, n=n)

    def fill(self, text: str) -> str:
        """The text with its [MASK]s filled in."""
        return fill(self, text).text

    def trace(self, text: str | None = None, *, tokens: int | None = None) -> TraceTable:
        """Every step of one forward pass over the text, or over so many tokens; by default its context is filled."""
        return tracing.trace(self, text, tokens=tokens)

    @has_arguments()
    def attend(
        self,
        text: str,
        *,
        target: str | None = None,
        of: AttentionKind | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> AttentionView:
        """Where each head looks when the model reads the text; arguments as in `clearhead.workflows.attend`."""
        return attending.attend(self, text, target=target, of=of, layer=layer, head=head)

    @has_arguments()
    def predict(self, text: str, *, target: str | None = None, top_k: int = 10, lens: bool = False) -> Prediction:
        """What the model expects at each position of the text; arguments as in `clearhead.workflows.predict`."""
        return predicting.predict(self, text, target=target, top_k=top_k, lens=lens)

    @property
    def history(self) -> list[Row]:
        """One row per step, as `pandas.DataFrame(run.history)` takes them.

        A row holds step, train_loss, val_loss, learning_rate, gradient_norm, tokens and seconds. Losses are in nats per
        token, None where they were not finite; `val_loss` is None where the step had no evaluation.
        """
        return rows(self.records())

    def plot(self) -> LossPlot:
        """The loss curves: a picture in a notebook, text if printed, and a file with `run.plot().save("loss.svg")`."""
        return LossPlot(History.of(self.records()).curve(*self._floor()), f"Training curve of {self.name}")

    def _repr_html_(self) -> str:
        """What a notebook shows: the curve, the figures, the options."""
        try:
            history = History.of(self.records()) if self.metrics.exists() else History()
            return show_training(report_of(self, history, history.curve(*self._floor())))
        except ClearheadError as error:
            return fragment(self.name, str(error), "")

    def _floor(self) -> tuple[float | None, float | None]:
        """The lowest possible loss and the bytes per token, where they are known."""
        try:
            task = self.task()
        except ClearheadError:  # the data is elsewhere by now
            return None, None
        return task.floor, task.bytes_per_token


@has_arguments()
def load(run: str | Path | RunFolder | None = None) -> Run:
    """A run by its folder or its name under `runs`; without either, the one that was written to last.

    Raises:
        DataError: there is no such run.
    """
    return Run(open_folder(run).folder)
