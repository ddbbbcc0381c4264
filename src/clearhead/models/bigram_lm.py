"""The model that every tutorial starts from: the next token's probabilities depend on the last token alone."""

import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models.initialization import initialize
from clearhead.models.language_model import CausalLM
from clearhead.parts import DecoderCache, Embedding


class BigramLM(CausalLM):
    """A (V, V) table: row i holds the logits of the token that follows token i."""

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # keeps torch's default init from advancing the global RNG
            self.embedding = Embedding(config.vocab_size, config.vocab_size)
        initialize(self, config, seed)

    def body(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        logits: Tensor = self.embedding(ids)  # first: an unknown id leaves the cache as it was
        if cache is not None:
            cache.extend(positions, ids.shape[1])
        return logits

    def head(self, hidden: Tensor) -> Tensor:
        return hidden

    def new_cache(self, batch_size: int, capacity: int) -> DecoderCache:
        return DecoderCache([], capacity)

    @property
    def receptive_field(self) -> int:
        return 1
