"""Block and stack: one block, with or without cross-attention and a causal mask, serves every architecture."""

from collections.abc import Sequence
from functools import partial
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clearhead.parts.cache import AttentionCache
from clearhead.parts.masks import Mask, refuse_exchanged
from clearhead.parts.positions import Rotate
from clearhead.parts.sublayer import Sublayer


class SelfAttentionOptions(TypedDict, total=False):
    """The options that a stack passes to each self-attention: see `Attention.forward`."""

    mask: Mask
    rotate: Rotate | None
    bias: Tensor | None


class Block(nn.Module):
    """Self-attention, cross-attention if there is one, feed-forward (Vaswani et al. 2017, figure 1)."""

    def __init__(
        self, self_attention: Sublayer, feedforward: Sublayer, cross_attention: Sublayer | None = None
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feedforward = feedforward

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        memory_mask: Mask = None,
        cache: AttentionCache | None = None,
        memory_cache: AttentionCache | None = None,
        **options: Unpack[SelfAttentionOptions],
    ) -> Tensor:
        """(B, T, D) -> (B, T, D); `memory` (B, T_src, D) is what cross-attention reads."""
        assert (memory is None) == (self.cross_attention is None), "cross-attention and memory come together"
        x = self.self_attention(x, cache=cache, **options)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, mask=memory_mask, cache=memory_cache)
        return self.feedforward(x)  # type: ignore[no-any-return]


class ParallelBlock(Block):
    """Self-attention and feed-forward side by side, on the same input (Wang & Komatsuzaki 2021, GPT-J)."""

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        memory_mask: Mask = None,
        cache: AttentionCache | None = None,
        memory_cache: AttentionCache | None = None,
        **options: Unpack[SelfAttentionOptions],
    ) -> Tensor:
        assert memory is None, "a parallel block has no cross-attention"
        return x + self.self_attention.branch(x, cache=cache, **options) + self.feedforward.branch(x)


class Stack(nn.Module):
    """Blocks in a row; `norm` closes a pre-norm stack, whose residual stream nothing else normalizes.

    Attributes:
        recompute: keep only the blocks' inputs for the backward pass, which runs each block again (Chen et al. 2016).
    """

    def __init__(self, blocks: Sequence[Block], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm if norm is not None else nn.Identity()
        self.recompute = False

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        memory_mask: Mask = None,
        caches: Sequence[AttentionCache] | None = None,
        memory_caches: Sequence[AttentionCache] | None = None,
        **options: Unpack[SelfAttentionOptions],
    ) -> Tensor:
        """(B, T, D) -> (B, T, D). Caches, if any, are one per block."""
        if memory is not None:
            refuse_exchanged(options.get("mask"), memory_mask, x.shape[1], memory.shape[1], cached=caches is not None)
        again = self.recompute and caches is None and torch.is_grad_enabled()
        for layer, block in enumerate(self.blocks):
            cache = caches[layer] if caches else None
            memory_cache = memory_caches[layer] if memory_caches else None
            run = partial(checkpoint, block, use_reentrant=False) if again else block
            x = run(x, memory, memory_mask=memory_mask, cache=cache, memory_cache=memory_cache, **options)
        return self.norm(x)  # type: ignore[no-any-return]
