"""The decoder-only Transformer: GPT and Llama are two of its configurations."""

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models.assembly import make_embedding, make_positions, make_stack, make_unembedding
from clearhead.models.initialisation import initialise
from clearhead.models.language_model import CausalLM
from clearhead.parts import DecoderCache, SelfAttentionCache, attention_mask, make_dropout


class DecoderLM(CausalLM):
    """Embedding, positions, a causal stack, a head (Radford et al. 2018)."""

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

    def hidden(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        start = range(ids.shape[1]) if positions is None else positions
        query, key = (start, start) if cache is None else cache.extend(positions, ids.shape[1])
        mask = attention_mask(
            query, key, causal=True, window=self.config.window, documents=documents, device=ids.device
        )
        x = self.dropout(self.positions.add(self.embedding(ids), query))  # (B, T, D)
        return self.stack(  # type: ignore[no-any-return]
            x,
            mask=mask,
            rotate=self.positions.rotate(query, ids.device),
            bias=self.positions.bias(query, key, ids.device),
            caches=None if cache is None else cache.layers,
        )

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, (self.unembedding or self.embedding).weight)

    def new_cache(self, batch_size: int, capacity: int) -> DecoderCache:
        config, weight = self.config, self.embedding.weight
        shape = (batch_size, config.n_kv_heads, capacity, config.head_width)
        layers = [SelfAttentionCache(shape, weight.dtype, weight.device) for _ in range(config.n_layers)]
        return DecoderCache(layers, capacity)

    @property
    def endless_window(self) -> int | None:
        return None if self.positions.bounded else self.config.window
