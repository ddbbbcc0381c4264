"""The original Transformer: an encoder reads a sentence, and a decoder writes its translation."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models.factory import (
    make_caches,
    make_embedding,
    make_embedding_norm,
    make_lm_head,
    make_positions,
    make_stack,
)
from clearhead.models.initialization import initialize
from clearhead.models.language_model import LanguageModel
from clearhead.parts import (
    DecoderCache,
    MemoryCache,
    attention_mask,
    make_dropout,
    positions_of,
    refuse_beyond,
)
from clearhead.parts.masks import Positions


class Memory(NamedTuple):
    """The encoder's output: states (B, T_src, D), and their positions, -1 for padding."""

    states: Tensor
    positions: Positions

    def select(self, rows: Tensor) -> Self:
        """These rows of the batch, in this order."""
        positions = self.positions
        return self._replace(
            states=self.states.index_select(0, rows),
            positions=positions if isinstance(positions, range) else positions.index_select(0, rows),
        )


class EncoderDecoder(LanguageModel):
    """Two stacks and a head (Vaswani et al. 2017, figure 1).

    Source and target share one vocabulary and one embedding, or have their own with `source_vocab_size`.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # keeps torch's default init from advancing the global RNG
            self.embedding = make_embedding(config, config.vocab_size)
            size = config.source_vocab_size
            self.source_embedding = None if size is None else make_embedding(config, size)
            self.source_positions = make_positions(config, causal=False)
            self.positions = make_positions(config, causal=True)
            self.source_embedding_norm = make_embedding_norm(config)
            self.embedding_norm = make_embedding_norm(config)
            self.dropout = make_dropout(config.dropout)
            self.encoder = make_stack(config.model_copy(update={"n_layers": config.n_encoder_layers}))
            self.decoder = make_stack(config, cross=True)
            self.lm_head = make_lm_head(config)
        initialize(self, config, seed)

    def encode(self, source: Tensor, *, positions: Positions | None = None) -> Memory:
        """Encode source ids (B, T_src), T_src at most block_size.

        Args:
            positions: as in `forward`.
        """
        x = (self.source_embedding or self.embedding)(source)  # (B, T_src, D)
        positions = positions_of(source, self.config.pad_id) if positions is None else positions
        refuse_beyond(positions, self.config.block_size)
        x = self.source_embedding_norm(self.source_positions.add(x, positions))
        states = self.encoder(
            self.dropout(x),
            mask=attention_mask(positions, positions, causal=False),
            rotate=self.source_positions.rotate(positions, source.device),
            bias=self.source_positions.bias(positions, positions, source.device),
        )
        return Memory(states, positions)

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        *,
        positions: Positions | None = None,
        cache: DecoderCache | None = None,
        tree_mask: Tensor | None = None,
    ) -> Tensor:
        """The decoder's last layer, from target ids (B, T) -> (B, T, D).

        Args:
            target: with a cache, only the tokens that are not in it yet.
            memory: of the same rows.
            positions: as in `forward`. By default rows continue after the cache, past block_size if positions are
                unbounded.
            cache: from `new_cache`, for this memory.
            tree_mask: (B, T, T_k) extra mask, for beams that share one cache row.
        """
        if cache is None:
            return self._decode(target, memory, positions, None, tree_mask)
        with cache.restored_on_failure():
            return self._decode(target, memory, positions, cache, tree_mask)

    def _decode(
        self,
        target: Tensor,
        memory: Memory,
        positions: Positions | None,
        cache: DecoderCache | None,
        tree_mask: Tensor | None,
    ) -> Tensor:
        x = self.embedding(target)  # (B, T, D)
        if cache is not None:
            assert not isinstance(positions, range), "with a cache, positions must be a tensor"
            limit = self.config.block_size if self.positions.bounded else None
            query, key = cache.extend(positions, target.shape[1], limit=limit)
        else:
            pad, start = self.config.pad_id, self.config.decoder_start_id
            query = key = positions_of(target, pad, causal=True, start_id=start) if positions is None else positions
            refuse_beyond(query, self.config.block_size)
        x = self.embedding_norm(self.positions.add(x, query))
        return self.decoder(  # type: ignore[no-any-return]
            self.dropout(x),
            memory.states,
            mask=attention_mask(query, key, causal=True, tree_mask=tree_mask, device=target.device),
            memory_mask=attention_mask(query, memory.positions, causal=False, device=target.device),
            rotate=self.positions.rotate(query, target.device),
            bias=self.positions.bias(query, key, target.device),
            caches=None if cache is None else cache.layers,
            memory_caches=None if cache is None else cache.memory_layers,
        )

    def body(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_positions: Positions | None = None,
        target_positions: Positions | None = None,
    ) -> Tensor:
        """The decoder's last layer, (B, T_src), (B, T) -> (B, T, D); arguments as in `forward`."""
        return self.decode(target, self.encode(source, positions=source_positions), positions=target_positions)

    def head(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden, self.embedding.weight)  # type: ignore[no-any-return]

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_positions: Positions | None = None,
        target_positions: Positions | None = None,
    ) -> Tensor:
        """Logits for the token after each token of the target, (B, T_src), (B, T) -> (B, T, V).

        Args:
            source, target: ids; rows may be padded with the config's `pad_id` on either side.
            source_positions, target_positions: (B, T) position of each token, -1 for padding; by default derived
                from `pad_id`.
        """
        return self.head(
            self.body(source, target, source_positions=source_positions, target_positions=target_positions)
        )

    def new_cache(self, batch_size: int, capacity: int) -> DecoderCache:
        """An empty cache for `decode`, with room for `capacity` target tokens per row."""
        layers = make_caches(self.config, batch_size, capacity, self.embedding.weight)
        return DecoderCache(layers, capacity, [MemoryCache() for _ in layers])
