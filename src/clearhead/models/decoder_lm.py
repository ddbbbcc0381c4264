"""The decoder-only Transformer: GPT and Llama are two of its configurations."""

import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import UsageError
from clearhead.models.factory import make_caches, make_ngram_tables
from clearhead.models.language_model import CausalLM
from clearhead.models.stack_lm import StackLM
from clearhead.parts import DecoderCache, attention_mask, last_tokens


class DecoderLM(StackLM, CausalLM):
    """Embedding, positions, a causal stack, a head (Radford et al. 2018).

    With n-gram tables, the last tokens are looked up; their vectors are added to the embedding and/or the head's input.
    """

    causal = True

    def add_parts(self, config: ModelConfig) -> None:
        self.embedding_ngrams = make_ngram_tables(config, config.embedding_ngrams)
        self.logit_ngrams = make_ngram_tables(config, config.logit_ngrams)

    def body(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        if cache is None:
            return self._read(ids, positions, documents, None)
        if documents is not None:
            raise UsageError("a cache does not keep the documents of its tokens; read documents without a cache")
        with cache.restored_on_failure():
            return self._read(ids, positions, None, cache)

    def _read(
        self, ids: Tensor, positions: Tensor | None, documents: Tensor | None, cache: DecoderCache | None
    ) -> Tensor:
        x = self.embedding(ids)  # (B, T, D)
        start = range(ids.shape[1]) if positions is None else positions
        limit = self.config.block_size if self.ends_at_block_size else None
        query, key = (start, start) if cache is None else cache.extend(positions, ids.shape[1], limit=limit)
        mask = attention_mask(
            query, key, causal=True, window=self.config.sliding_window, documents=documents, device=ids.device
        )
        longest = self.config.longest_ngram
        tokens = last_tokens(ids, longest, query, documents, cache) if longest > 1 else ids  # (B, T, longest)
        if self.embedding_ngrams is not None:
            x = x + self.embedding_ngrams(tokens)
        x = self.run_stack(x, query, key, mask, None if cache is None else cache.layers)
        return x if self.logit_ngrams is None else x + self.logit_ngrams(tokens)

    def new_cache(self, batch_size: int, capacity: int) -> DecoderCache:
        weight, n = self.embedding.weight, self.config.longest_ngram
        layers = make_caches(self.config, batch_size, capacity, weight)
        tokens = torch.zeros(batch_size, n - 1, dtype=torch.int64, device=weight.device) if n > 1 else None
        return DecoderCache(layers, capacity, tokens=tokens)

    @property
    def ends_at_block_size(self) -> bool:
        return self.receptive_field is None

    @property
    def receptive_field(self) -> int | None:
        return None if self.positions.bounded else self.config.sliding_window
