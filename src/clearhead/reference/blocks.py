"""Residual, norm, block and stack: how the parts stand together."""

from collections.abc import Callable
from typing import NamedTuple

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Allowed, Array, Weights, subtree
from clearhead.reference.attention import AttentionInputs, attend
from clearhead.reference.feedforward import feed_forward
from clearhead.reference.norms import normalize


class SourceMemory(NamedTuple):
    """The encoder's output for cross-attention, and the mask from targets to it."""

    states: Array  # (B, T_src, D)
    allowed: Allowed  # (B, T, T_src)


def sublayer(x: Array, part: Callable[[Array], Array], norm: Weights, config: ModelConfig) -> Array:
    """post: norm(x + part(x)) (Vaswani et al. 2017, section 3.1); pre: x + part(norm(x)) (Xiong et al. 2020, figure 1).

    (B, T, D) -> (B, T, D).
    """
    if config.norm_position == "post":
        return normalize(x + part(x), norm, config)
    return x + branch(x, part, norm, config)


def branch(x: Array, part: Callable[[Array], Array], norm: Weights, config: ModelConfig) -> Array:
    """The branch of a pre-norm sublayer: part(norm(x)), (B, T, D) -> (B, T, D)."""
    return part(normalize(x, norm, config))


def block(
    x: Array,
    weights: Weights,
    config: ModelConfig,
    inputs: AttentionInputs,
    memory: SourceMemory | None = None,
) -> Array:
    """Self-attention, cross-attention where there is a memory, feed-forward (Vaswani et al. 2017, figure 1).

    (B, T, D) -> (B, T, D). With parallel residuals x + attention(norm1(x)) + feedforward(norm2(x)) (Wang & Komatsuzaki
    2021, GPT-J; with two norms Black et al. 2022, arXiv 2204.06745, section 2.1.2).
    """
    first, last = subtree(weights, "self_attention.norm"), subtree(weights, "feedforward.norm")

    def attend_to_itself(x: Array) -> Array:
        return attend(x, x, subtree(weights, "self_attention.part"), config, inputs).output  # (B, T, D)

    def ffn(x: Array) -> Array:
        return feed_forward(x, subtree(weights, "feedforward.part"), config.feedforward).output  # (B, T, D)

    if config.parallel_residual:
        return x + branch(x, attend_to_itself, first, config) + branch(x, ffn, last, config)
    x = sublayer(x, attend_to_itself, first, config)  # (B, T, D)
    if memory is not None:
        states, of_memory = memory.states, AttentionInputs(memory.allowed, kept=inputs.kept)

        def attend_to_memory(x: Array) -> Array:
            return attend(x, states, subtree(weights, "cross_attention.part"), config, of_memory).output  # (B, T, D)

        x = sublayer(x, attend_to_memory, subtree(weights, "cross_attention.norm"), config)  # (B, T, D)
    return sublayer(x, ffn, last, config)  # (B, T, D)


def stack(
    x: Array,
    weights: Weights,
    config: ModelConfig,
    inputs: AttentionInputs,
    memory: SourceMemory | None = None,
    *,
    n_layers: int,
) -> Array:
    """`n_layers` blocks, and a norm behind them if they are pre-norm: (B, T, D) -> (B, T, D)."""
    for layer in range(n_layers):
        x = block(x, subtree(weights, f"blocks.{layer}"), config, inputs, memory)  # (B, T, D)
    return normalize(x, subtree(weights, "norm"), config) if config.norm_position == "pre" else x
