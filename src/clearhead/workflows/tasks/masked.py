"""The objective of predicting masked tokens."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead import data as texts
from clearhead.config import DataConfig, RunConfig
from clearhead.data import IGNORED, Masking, TextData, Tokenizer
from clearhead.doctor import PreflightReport, preflight
from clearhead.inference import evaluating
from clearhead.inference.filling import MASKED
from clearhead.models import LanguageModel
from clearhead.options import Settings
from clearhead.training import Optimizer
from clearhead.workflows.tasks.causal import CausalTask, window_shape
from clearhead.workflows.tasks.task import Batches, Example, declared
from clearhead.workflows.tasks.typed import easily_typed, gaps

SHOWN = 60  # tokens of an example
LOOKED_THROUGH = 400  # held-out tokens, for a line to fill in


class MaskedTask(CausalTask):
    """Windows of text with masked tokens, which are the targets."""

    masks = True
    counted = "masked tokens"
    next_verbs = (("fill", f"To be or not to {MASKED}"), ("evaluate", "other.txt"))

    def __init__(self, config: DataConfig, prepared: TextData) -> None:
        super().__init__(config, prepared)
        text = self.tokenizer.decode(prepared.val[:LOOKED_THROUGH].tolist())
        if example := easily_typed(gaps(text)):
            self.next_verbs = (("fill", example), *self.next_verbs[1:])

    @property
    def masking(self) -> Masking:
        """Which tokens are masked, and by what."""
        return Masking.of(self.tokenizer, self.config.mask_probability)

    def model_settings(self) -> Settings:
        return {"vocab_size": self.tokenizer.vocab_size, "pad_id": self.tokenizer.pad}

    def batches(self, config: RunConfig) -> Batches:
        block, rows, masking = config.model.block_size, config.train.batch_size, self.masking
        tokens, seed = self.prepared.train, config.seed
        return lambda step: texts.masked_training_batch(
            tokens, block_size=block, batch_size=rows, seed=seed, step=step, masking=masking
        )

    def body(self, model: LanguageModel) -> Callable[..., Tensor]:
        """Windows have no padding; skipping the check avoids a GPU sync."""
        everywhere = super().body(model)
        return lambda ids: everywhere(ids, positions=range(ids.shape[1]))

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
        block, rows = window_shape(config.model.block_size, len(tokens), rows)
        masking = Masking.of(tokenizer, config.data.mask_probability)
        return texts.masked_evaluation_batches(tokens, block_size=block, batch_size=rows, masking=masking, limit=limit)

    def example(self, model: LanguageModel) -> Example:
        """The beginning of the held-out text, what was filled in between brackets, after it what belongs there."""
        block = min(SHOWN, model.config.block_size, len(self.prepared.val) - 1)
        batches = texts.masked_evaluation_batches(
            self.prepared.val[: block + 1], block_size=block, batch_size=1, masking=self.masking
        )
        inputs, targets = next(iter(batches))
        with evaluating(model), torch.inference_mode():
            filled = model(inputs.to(model.device))[0].argmax(-1).tolist()
        pieces = [
            self.tokenizer.decode([token]) if target == IGNORED else self._format_prediction(guess, target)
            for token, target, guess in zip(inputs[0].tolist(), targets[0].tolist(), filled, strict=True)
        ]
        return Example("".join(pieces))

    def preflight(
        self, model: LanguageModel, optimizer: Optimizer, config: RunConfig, *, fresh: bool = True
    ) -> PreflightReport:
        inputs, targets = self.batches(config)(0)
        moved = optimizer.parameters.values()
        return preflight(
            model,
            inputs,
            targets,
            moved,
            spec=declared(model, "bidirectional", fresh=fresh),
            forward=self.forward(model),
        )

    def _format_prediction(self, guess: int, target: int) -> str:
        guessed, right = self.tokenizer.decode([guess]), self.tokenizer.decode([target])
        space = " " if right.startswith(" ") else ""
        return f"{space}[{guessed.strip()}]" if guess == target else f"{space}[{guessed.strip()}: {right.strip()}]"
