"""The interface of every model, so that training, evaluation and inspection need not know the architecture."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.lazy import provided
from clearhead.parts import DecoderCache

IN_CACHE, AT_ONCE = 2**20, 2**26  # logits (rows times V) that are computed together, on a CPU and elsewhere


def rows_at_once(vocab_size: int, device: torch.device) -> int:
    """How many rows of logits to compute together: a CPU is fastest while they stay in its cache."""
    return max(1, (IN_CACHE if device.type == "cpu" else AT_ONCE) // vocab_size)


class LanguageModel(nn.Module, ABC):
    """Tokens in, logits out: `forward` is `head` of `body`, and takes what `body` takes."""

    config: ModelConfig

    # Both signatures take `Any`, not `object`, so that subclasses may narrow them.

    @abstractmethod
    def body(self, *inputs: Any, **options: Any) -> Tensor:
        """The last layer's output, ids (B, T) -> (B, T, D); each architecture documents its other inputs."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) from hidden states (..., D)."""

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Logits (B, T, V)."""
        return self.head(self.body(*inputs, **options))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device


class CausalLM(LanguageModel):
    """A model that predicts the next token, so that it can continue a text."""

    @abstractmethod
    def body(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """The last layer's output, (B, T) -> (B, T, D); arguments as in `forward`."""

    @abstractmethod
    def new_cache(self, batch_size: int, capacity: int) -> DecoderCache:
        """An empty cache with room for `capacity` tokens per row."""

    def forward(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Logits for the token after each token, (B, T) -> (B, T, V).

        Args:
            ids: token ids. Cache plus ids must not exceed block_size, unless the model's window slides without end.
            positions: (B, T) of each token in its own sequence, -1 for padding (see `positions_from_lengths`); by
                default rows start at 0, or continue after the cache.
            documents: (B, T) number of the document of each token: no attention from one to another. Not with a cache.
            cache: keys and values of earlier calls; those of this call are appended, unless it fails.

        Raises:
            UsageError: an id, a position or a combination of arguments that cannot be.
        """
        return self.head(self.body(ids, positions=positions, documents=documents, cache=cache))

    def generate(self, ids: Tensor, max_new_tokens: int | None = None, **options: Any) -> Tensor:
        """Continue each row of ids, (B, T) -> (B, T + new): `clearhead.generate_ids(self, ids, ...)`.

        Sampling is implemented in `clearhead.inference`, which this package may not import.
        """
        continued: Tensor = provided("generate_ids")(self, ids, max_new_tokens, **options)
        return continued

    @property
    @abstractmethod
    def receptive_field(self) -> int | None:
        """How many tokens, itself included, a query attends to if texts may be endless; None if they may not."""
