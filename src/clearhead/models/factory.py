"""Build parts from a config: the only place where an option's value becomes a module."""

from functools import partial

from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.parts import (
    ACTIVATIONS,
    FEEDFORWARDS,
    NORMS,
    POSITIONS,
    Attention,
    Block,
    Embedding,
    LMHead,
    NgramTables,
    ParallelBlock,
    PositionOptions,
    ProjectionConfig,
    RMSNorm,
    Scoring,
    SelfAttentionCache,
    Stack,
    Sublayer,
    Transform,
)
from clearhead.parts.positions import PositionEncoding


def make_embedding(config: ModelConfig, vocab_size: int) -> Embedding:
    """A vector for each of the tokens."""
    return Embedding(vocab_size, config.d_model, scaled=config.scale_embedding)


def make_ngram_tables(config: ModelConfig, longest: int) -> NgramTables | None:
    """Tables for n-grams of 2 to `longest` tokens; None if `longest` is 1."""
    return NgramTables(config.vocab_size, config.d_model, longest, config.ngram_rows) if longest > 1 else None


def make_lm_head(config: ModelConfig) -> LMHead:
    """The head; if tied, it has no matrix of its own."""
    activation = ACTIVATIONS[config.feedforward]
    return LMHead(
        config.d_model,
        config.vocab_size,
        tied=config.tie_embeddings,
        bias=config.head_bias,
        scaled=config.scale_logits,
        transform=Transform(config.d_model, activation, make_norm(config)) if config.head_transform else None,
    )


def make_norm(config: ModelConfig) -> nn.Module:
    """A norm over the width of the model."""
    return NORMS[config.norm](config.d_model, config.norm_eps)


def make_embedding_norm(config: ModelConfig) -> nn.Module:
    """The norm after embedding and positions, or the identity."""
    return make_norm(config) if config.embedding_norm else nn.Identity()


def make_positions(config: ModelConfig, *, causal: bool) -> PositionEncoding:
    """The config's positions, for a causal or a bidirectional stack."""
    return POSITIONS[config.positions](
        PositionOptions(
            d_model=config.d_model,
            n_heads=config.n_heads,
            block_size=config.block_size,
            rotary_width=config.rotary_width,
            rope_theta=config.rope_theta,
            relative_buckets=config.relative_buckets,
            relative_max_distance=config.relative_max_distance,
            causal=causal,
        )
    )


def make_sublayer(config: ModelConfig, part: nn.Module) -> Sublayer:
    """The part with the residual, the norm and the dropout around it."""
    return Sublayer(part, make_norm(config), norm_position=config.norm_position, dropout=config.dropout)


def make_attention(config: ModelConfig) -> Attention:
    """Self- or cross-attention; they are the same module."""
    qk_norm = partial(RMSNorm, eps=config.norm_eps) if config.qk_norm else None
    return Attention(
        config.d_model,
        config.n_heads,
        config.n_kv_heads,
        config.head_dim,
        projections=ProjectionConfig(config.bias, config.qkv_bias, qk_norm),
        scoring=Scoring(None if config.scale_attention else 1.0, config.attention_softcap),
        dropout=config.attention_dropout,
    )


def make_block(config: ModelConfig, *, cross: bool = False) -> Block:
    """One block; `cross` adds attention to a memory."""
    feedforward = FEEDFORWARDS[config.feedforward](
        config.d_model, config.d_ff, bias=config.bias, dropout=config.feedforward_dropout
    )
    block = ParallelBlock if config.parallel_residual else Block
    return block(
        make_sublayer(config, make_attention(config)),
        make_sublayer(config, feedforward),
        make_sublayer(config, make_attention(config)) if cross else None,
    )


def make_caches(config: ModelConfig, batch_size: int, capacity: int, like: Tensor) -> list[SelfAttentionCache]:
    """An empty cache for the self-attention of each block, of the type and on the device of `like`."""
    shape = (batch_size, config.n_kv_heads, capacity, config.head_dim)
    return [SelfAttentionCache(shape, like.dtype, like.device) for _ in range(config.n_layers)]


def make_stack(config: ModelConfig, *, cross: bool = False) -> Stack:
    """`n_layers` blocks, and a final norm if they are pre-norm; `cross` adds attention to a memory."""
    blocks = [make_block(config, cross=cross) for _ in range(config.n_layers)]
    return Stack(blocks, make_norm(config) if config.norm_position == "pre" else None)
