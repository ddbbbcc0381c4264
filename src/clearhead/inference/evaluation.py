"""How well a model predicts a text."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.data import IGNORED, document_numbers
from clearhead.errors import DataError
from clearhead.inference.mode import evaluating
from clearhead.models import LanguageModel

LOGITS_AT_ONCE = 2**25  # numbers; bounds the memory of a large vocabulary


@dataclass(frozen=True)
class Evaluation:
    """The mean loss in nats per token, and over how many tokens."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """Over how many equally likely tokens the model hesitates: exp(loss)."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    def bits_per_byte(self, n_bytes: int) -> float:
        """Bits to write down one byte of the text; comparable over tokenizers.

        Args:
            n_bytes: of the evaluated text in UTF-8.
        """
        return self.loss * self.tokens / (n_bytes * math.log(2))


def evaluate(
    model: LanguageModel,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    isolate: int | None = None,
) -> Evaluation:
    """The mean over all counted tokens, so the same however they are batched.

    Args:
        model: in whatever mode; it is evaluated without dropout and left as it was.
        batches: (inputs, targets), each (B, T); a target of -100 is not counted.
        isolate: id of the end of a document, for a model that was trained to see one document at a time.

    Raises:
        DataError: there is no token to predict.
    """
    device, sums, counts = model.device, [], []
    with evaluating(model), torch.inference_mode():
        for inputs, targets in batches:
            targets = targets.to(device)
            losses = token_losses(model, inputs.to(device), targets, isolate=isolate)  # (B, T)
            sums.append(losses.sum(-1))  # (B,): short sums, so float32 loses nothing that counts
            counts.append((targets != IGNORED).sum())
    tokens = int(torch.stack(counts).sum()) if counts else 0
    if not tokens:
        raise DataError("there is nothing to evaluate: the text has no token to predict; give a longer one")
    return Evaluation(torch.cat(sums).cpu().double().sum().item() / tokens, tokens)


def token_losses(model: LanguageModel, inputs: Tensor, targets: Tensor, *, isolate: int | None = None) -> Tensor:
    """-log p of every target in nats, 0 where it is not counted. inputs, targets, result: (B, T)."""
    documents = None if isolate is None else document_numbers(inputs, isolate)
    hidden = model.hidden(inputs, documents=documents).flatten(0, 1)  # (B, T, D) -> (B * T, D)
    rows, counted = max(1, LOGITS_AT_ONCE // model.config.vocab_size), targets.flatten()
    losses = []
    for start in range(0, len(hidden), rows):
        logits = model.head(hidden[start : start + rows]).float()  # (rows, V)
        some = counted[start : start + rows]
        losses.append(F.cross_entropy(logits, some, ignore_index=IGNORED, reduction="none"))
    return torch.cat(losses).view_as(targets)  # (B * T,) -> (B, T)
