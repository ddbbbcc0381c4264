"""Tensors in, tensors out: the parts that every Transformer is made of."""

from clearhead.parts.attention import Attention, Projections, attend
from clearhead.parts.block import BLOCKS, Block, ParallelBlock, Stack
from clearhead.parts.cache import DecoderCache, MemoryCache, SelfAttentionCache
from clearhead.parts.dropout import make_dropout
from clearhead.parts.embedding import Embedding, refuse_unknown_ids, unknown_id
from clearhead.parts.feedforward import ACTIVATIONS, FEEDFORWARDS, FeedForward, GatedFeedForward
from clearhead.parts.masks import (
    additive_from_allowed,
    allowed_from_additive,
    allowed_from_forbidden,
    attention_mask,
    forbidden_from_allowed,
    padded_positions,
    positions_of,
)
from clearhead.parts.ngram_tables import NgramTables, last_tokens
from clearhead.parts.norms import NORMS, LayerNorm, PlusOneRMSNorm, RMSNorm
from clearhead.parts.positions import POSITIONS, PositionOptions, refuse_beyond
from clearhead.parts.sublayer import Sublayer
from clearhead.parts.unembedding import Transform, Unembedding

__all__ = [
    "ACTIVATIONS",
    "BLOCKS",
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
    "NgramTables",
    "ParallelBlock",
    "PlusOneRMSNorm",
    "PositionOptions",
    "Projections",
    "RMSNorm",
    "SelfAttentionCache",
    "Stack",
    "Sublayer",
    "Transform",
    "Unembedding",
    "additive_from_allowed",
    "allowed_from_additive",
    "allowed_from_forbidden",
    "attend",
    "attention_mask",
    "forbidden_from_allowed",
    "last_tokens",
    "make_dropout",
    "padded_positions",
    "positions_of",
    "refuse_beyond",
    "refuse_unknown_ids",
    "unknown_id",
]
