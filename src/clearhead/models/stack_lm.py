"""The base of decoder and encoder, which differ only in their masks."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models.factory import (
    make_embedding,
    make_embedding_norm,
    make_lm_head,
    make_positions,
    make_stack,
)
from clearhead.models.initialization import initialize
from clearhead.models.language_model import LanguageModel
from clearhead.parts import SelfAttentionCache, make_dropout, refuse_beyond
from clearhead.parts.masks import Mask, Positions


class StackLM(LanguageModel):
    """Embedding, positions, one stack of blocks, a head."""

    causal: ClassVar[bool]  # whether the mask is causal

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # keeps torch's default init from advancing the global RNG
            self.embedding = make_embedding(config, config.vocab_size)
            self.positions = make_positions(config, causal=self.causal)
            self.embedding_norm = make_embedding_norm(config)
            self.dropout = make_dropout(config.dropout)
            self.stack = make_stack(config)
            self.lm_head = make_lm_head(config)
            self.add_parts(config)
        initialize(self, config, seed)

    def add_parts(self, config: ModelConfig) -> None:
        """Add the parts that only one architecture has."""

    def run_stack(
        self,
        x: Tensor,
        query: Positions,
        key: Positions,
        mask: Mask,
        caches: Sequence[SelfAttentionCache] | None = None,
    ) -> Tensor:
        """The last layer's output, (B, T, D) -> (B, T, D).

        Args:
            x: embedded tokens at the positions `query`.
            key: positions of all keys: those in the caches, then their own.
            mask: see `attention_mask`.
            caches: one per block.

        Raises:
            UsageError: a position is not below block_size, where texts end there.
        """
        if self.ends_at_block_size:
            refuse_beyond(query, self.config.block_size)
        x = self.dropout(self.embedding_norm(self.positions.add(x, query)))  # (B, T, D)
        return self.stack(  # type: ignore[no-any-return]
            x,
            mask=mask,
            rotate=self.positions.rotate(query, x.device),
            bias=self.positions.bias(query, key, x.device),
            caches=caches,
        )

    @property
    def ends_at_block_size(self) -> bool:
        """Whether block_size is the maximum length of a text."""
        return True

    def head(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden, self.embedding.weight)  # type: ignore[no-any-return]
