"""Tensors in, tensors out: the parts that every Transformer is made of."""

from clearhead.parts.attention import Attention, ProjectionConfig, attend
from clearhead.parts.block import Block, ParallelBlock, Stack
from clearhead.parts.cache import DecoderCache, MemoryCache, SelfAttentionCache
from clearhead.parts.dropout import make_dropout
from clearhead.parts.eager_attention import Scoring
from clearhead.parts.embedding import Embedding, refuse_unknown_ids, refuse_wrong_ids, unknown_id
from clearhead.parts.feedforward import ACTIVATIONS, FEEDFORWARDS, FeedForward, GatedFeedForward
from clearhead.parts.lm_head import LMHead, Transform
from clearhead.parts.masks import (
    additive_from_allowed,
    allowed_from_additive,
    allowed_from_forbidden,
    attention_mask,
    forbidden_from_allowed,
    positions_from_lengths,
    positions_of,
)
from clearhead.parts.ngram_tables import NgramTables, last_tokens
from clearhead.parts.norms import NORMS, LayerNorm, PlusOneRMSNorm, RMSNorm
from clearhead.parts.positions import POSITIONS, PositionOptions, refuse_beyond
from clearhead.parts.slots import SlotCache, SlotRows
from clearhead.parts.sublayer import Sublayer

__all__ = [
    "ACTIVATIONS",
    "FEEDFORWARDS",
    "NORMS",
    "POSITIONS",
    "Attention",
    "Block",
    "DecoderCache",
    "Embedding",
    "FeedForward",
    "GatedFeedForward",
    "LMHead",
    "LayerNorm",
    "MemoryCache",
    "NgramTables",
    "ParallelBlock",
    "PlusOneRMSNorm",
    "PositionOptions",
    "ProjectionConfig",
    "RMSNorm",
    "Scoring",
    "SelfAttentionCache",
    "SlotCache",
    "SlotRows",
    "Stack",
    "Sublayer",
    "Transform",
    "additive_from_allowed",
    "allowed_from_additive",
    "allowed_from_forbidden",
    "attend",
    "attention_mask",
    "forbidden_from_allowed",
    "last_tokens",
    "make_dropout",
    "positions_from_lengths",
    "positions_of",
    "refuse_beyond",
    "refuse_unknown_ids",
    "refuse_wrong_ids",
    "unknown_id",
]
