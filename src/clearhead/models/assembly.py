"""From a config's words to parts: the only place where a choice's name becomes a module."""

from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.parts import (
    FEEDFORWARDS,
    NORMS,
    POSITIONS,
    Attention,
    Block,
    Embedding,
    SelfAttentionCache,
    Stack,
    Sublayer,
)
from clearhead.parts.positions import PositionKind


def make_embedding(config: ModelConfig, vocab_size: int) -> Embedding:
    """A vector for each of the tokens."""
    return Embedding(vocab_size, config.d_model, scaled=config.scale_embedding)


def make_unembedding(config: ModelConfig) -> nn.Linear | None:
    """A head of its own; None where the embedding is the head."""
    return None if config.tied else nn.Linear(config.d_model, config.vocab_size, bias=False)


def make_norm(config: ModelConfig) -> nn.Module:
    """A norm over the width of the model."""
    return NORMS[config.norm](config.d_model, config.norm_epsilon)


def make_positions(config: ModelConfig) -> PositionKind:
    """How tokens know where they stand."""
    return POSITIONS[config.positions](config.d_model, config.n_heads, config.block_size, config.rope_base)


def make_sublayer(config: ModelConfig, part: nn.Module) -> Sublayer:
    """The part with the residual, the norm and the dropout around it."""
    return Sublayer(part, make_norm(config), place=config.norm_place, dropout=config.dropout)


def make_attention(config: ModelConfig) -> Attention:
    """Self- or cross-attention; they are the same module."""
    return Attention(
        config.d_model,
        config.n_heads,
        config.n_kv_heads,
        bias=config.bias,
        qk_norm=config.qk_norm,
        dropout=config.attention_dropout,
        epsilon=config.norm_epsilon,
    )


def make_block(config: ModelConfig, *, cross: bool = False) -> Block:
    """One block; `cross` adds attention to a memory."""
    feedforward = FEEDFORWARDS[config.feedforward](
        config.d_model, config.d_ff, bias=config.bias, dropout=config.feedforward_dropout
    )
    return Block(
        make_sublayer(config, make_attention(config)),
        make_sublayer(config, feedforward),
        make_sublayer(config, make_attention(config)) if cross else None,
    )


def make_caches(config: ModelConfig, batch_size: int, capacity: int, like: Tensor) -> list[SelfAttentionCache]:
    """An empty cache for the self-attention of each block, of the type and on the device of `like`."""
    shape = (batch_size, config.n_kv_heads, capacity, config.head_width)
    return [SelfAttentionCache(shape, like.dtype, like.device) for _ in range(config.n_layers)]


def make_stack(config: ModelConfig, *, cross: bool = False) -> Stack:
    """`n_layers` blocks, closed by a norm if and only if they are pre-norm; with `cross` they read a memory."""
    blocks = [make_block(config, cross=cross) for _ in range(config.n_layers)]
    return Stack(blocks, make_norm(config) if config.norm_place == "pre" else None)
