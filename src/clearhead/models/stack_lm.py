"""What a decoder and an encoder share: they differ only in who may see whom."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models.assembly import make_embedding, make_positions, make_stack, make_unembedding
from clearhead.models.initialisation import initialise
from clearhead.models.language_model import LanguageModel
from clearhead.parts import SelfAttentionCache, make_dropout
from clearhead.parts.masks import Mask, Positions


class StackLM(LanguageModel):
    """Embedding, positions, one stack of blocks, a head."""

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # torch draws at construction; what counts is drawn below
            self.embedding = make_embedding(config, config.vocab_size)
            self.positions = make_positions(config)
            self.dropout = make_dropout(config.dropout)
            self.stack = make_stack(config)
            self.unembedding = make_unembedding(config)
        initialise(self, config, seed)

    def through_the_stack(
        self,
        ids: Tensor,
        query: Positions,
        key: Positions,
        mask: Mask,
        caches: Sequence[SelfAttentionCache] | None = None,
    ) -> Tensor:
        """The last layer's output, (B, T) -> (B, T, D).

        Args:
            ids: token ids, standing at the positions `query`.
            key: positions of all that they may see: their own, after those in the caches.
            mask: who sees whom of them.
            caches: one per block.
        """
        x = self.dropout(self.positions.add(self.embedding(ids), query))  # (B, T, D)
        return self.stack(  # type: ignore[no-any-return]
            x,
            mask=mask,
            rotate=self.positions.rotate(query, ids.device),
            bias=self.positions.bias(query, key, ids.device),
            caches=caches,
        )

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, (self.unembedding or self.embedding).weight)
