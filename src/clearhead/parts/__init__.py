"""Tensors in, tensors out: the parts that every Transformer is made of."""

from clearhead.parts.attention import Attention, attend
from clearhead.parts.block import Block, Stack
from clearhead.parts.cache import DecoderCache, MemoryCache, SelfAttentionCache
from clearhead.parts.dropout import make_dropout
from clearhead.parts.embedding import Embedding
from clearhead.parts.feedforward import FEEDFORWARDS, FeedForward, GatedFeedForward
from clearhead.parts.masks import (
    additive_from_allowed,
    allowed_from_additive,
    allowed_from_forbidden,
    attention_mask,
    forbidden_from_allowed,
    padded_positions,
    positions_of,
)
from clearhead.parts.norms import NORMS, LayerNorm, RMSNorm
from clearhead.parts.positions import POSITIONS
from clearhead.parts.sublayer import Sublayer

__all__ = [
    "FEEDFORWARDS",
    "NORMS",
    "POSITIONS",
    "Attention",
    "Block",
    "DecoderCache",
    "Embedding",
    "FeedForward",
    "GatedFeedForward",
    "LayerNorm",
    "MemoryCache",
    "RMSNorm",
    "SelfAttentionCache",
    "Stack",
    "Sublayer",
    "additive_from_allowed",
    "allowed_from_additive",
    "allowed_from_forbidden",
    "attend",
    "attention_mask",
    "forbidden_from_allowed",
    "make_dropout",
    "padded_positions",
    "positions_of",
]
