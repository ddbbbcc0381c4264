"""The decoder-only Transformer: GPT and Llama are two of its configurations."""

from torch import Tensor

from clearhead.models.assembly import make_caches
from clearhead.models.language_model import CausalLM
from clearhead.models.stack_lm import StackLM
from clearhead.parts import DecoderCache, attention_mask


class DecoderLM(StackLM, CausalLM):
    """Embedding, positions, a causal stack, a head (Radford et al. 2018)."""

    causal = True

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
        return self.through_the_stack(self.embedding(ids), query, key, mask, None if cache is None else cache.layers)

    def new_cache(self, batch_size: int, capacity: int) -> DecoderCache:
        layers = make_caches(self.config, batch_size, capacity, self.embedding.weight)
        return DecoderCache(layers, capacity)

    @property
    def endless_window(self) -> int | None:
        return None if self.positions.bounded else self.config.window
