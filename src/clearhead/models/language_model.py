"""What every model of text has in common, so that training, evaluation and inspection never ask which one it is."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.parts import DecoderCache


class LanguageModel(nn.Module, ABC):
    """Tokens in, logits out: `forward` is `head` of `body`, and takes what `body` takes."""

    config: ModelConfig

    @abstractmethod
    def body(self, *inputs: Any, **options: Any) -> Tensor:
        """The last layer's output, ids (B, T) -> (B, T, D); each architecture says what else it takes."""

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
    """A model whose logits are the next token's, so that it can go on with a text."""

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
            ids: token ids, of each text at most block_size, those in the cache included, unless its window is endless.
            positions: (B, T) of each token in its own sequence, -1 for padding (see `positions_from_lengths`);
                without it, every row starts at 0, or goes on where the cache ends.
            documents: (B, T) number of the document of each token: no attention from one to another. Not with a cache.
            cache: holds the keys and values of earlier calls and takes up those of this one; as it was if this one
                fails.

        Raises:
            UsageError: an id, a position or a combination of arguments that cannot be.
        """
        return self.head(self.body(ids, positions=positions, documents=documents, cache=cache))

    @property
    @abstractmethod
    def receptive_field(self) -> int | None:
        """How many tokens, the last one its own, a token attends to in a text without end.

        None: texts end at block_size.
        """
