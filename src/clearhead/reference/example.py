"""One decoder layer on known numbers, with everything that it computes on the way."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Array, Weights, subtree
from clearhead.reference.attention import AttentionInputs, AttentionSteps, attend
from clearhead.reference.feedforward import feed_forward
from clearhead.reference.norms import normalize
from clearhead.reference.positions import may_attend

T, T_SRC, D, D_FF, H = 3, 4, 8, 16, 2


class Intermediate(NamedTuple):
    """A name, what it is made of, what its axes are, and its numbers."""

    name: str
    equation: str
    axes: str
    values: Array


class ExampleLayer(NamedTuple):
    """The layer's config, its weights by the names of a block, and what it computes, in order."""

    config: ModelConfig
    weights: Weights
    intermediates: list[Intermediate]


def worked_example(norm_position: str = "post") -> ExampleLayer:
    """A layer of the first Transformer (Vaswani et al. 2017, figure 1), 8 wide, with two heads and no biases.

    Its numbers are those of `numpy.random.seed(0)`, drawn in this order: x, memory, the eight matrices of
    self-attention and cross-attention (query, key, value, output), up and down.

    Raises:
        UsageError: `norm_position` is neither 'pre' nor 'post'.
    """
    config = ModelConfig.read(
        {"architecture": "encoder_decoder", "n_layers": 1, "n_heads": H, "d_model": D, "d_ff": D_FF},
        {"norm_position": norm_position, "feedforward": "relu", "positions": "none"},
    )
    random = np.random.RandomState(0)
    x, memory = random.randn(1, T, D) * 0.3, random.randn(1, T_SRC, D) * 0.3  # (1, T, D), (1, T_src, D)
    weights: dict[str, Array] = {}
    for part in ("self_attention", "cross_attention"):
        for name in ("query", "key", "value", "output"):
            weights[f"{part}.part.{name}.weight"] = _draw(random, D, D)
    weights["feedforward.part.up.weight"] = _draw(random, D, D_FF)
    weights["feedforward.part.down.weight"] = _draw(random, D_FF, D)
    for part in ("self_attention", "cross_attention", "feedforward"):
        weights[f"{part}.norm.weight"], weights[f"{part}.norm.bias"] = np.ones(D), np.zeros(D)
    return ExampleLayer(config, weights, list(decoder_layer(x, memory, weights, config)))


def _draw(random: np.random.RandomState, width_in: int, width_out: int) -> Array:
    drawn: Array = random.randn(width_in, width_out) / np.sqrt(width_in)  # (in, out), for x @ W
    return drawn.T  # (out, in), as the models keep it


# Each sublayer of a block, and the name of what comes out of it: of its norm, post-norm, or of its residual, pre-norm.
SUBLAYERS = (("self_attention", "x1"), ("cross_attention", "x2"), ("feedforward", "out"))


def decoder_layer(x: Array, memory: Array, weights: Weights, config: ModelConfig) -> Iterator[Intermediate]:
    """What `block` computes with a memory, of which everything may be seen, one step after the other."""
    yield Intermediate("x", "the target, drawn", "B T D", x)
    yield Intermediate("memory", "what an encoder made of the source, drawn", "B T_src D", memory)
    name = "x"
    for sublayer, after in SUBLAYERS:
        norm, read, read_as = subtree(weights, f"{sublayer}.norm"), x, name
        if config.norm_position == "pre":
            read, read_as = normalize(x, norm, config), f"norm({name})"
            yield Intermediate(read_as, f"({name} - mean) / sqrt(variance + eps)", "B T D", read)
        part = subtree(weights, f"{sublayer}.part")
        if sublayer == "self_attention":
            steps = list(_self_attention(read, read_as, part, config))
        elif sublayer == "cross_attention":
            steps = list(_cross_attention(read, read_as, memory, part, config))
        else:
            steps = list(_feedforward(read, read_as, part, config))
        yield from steps
        written, total = steps[-1], x + steps[-1].values  # (B, T, D)
        if config.norm_position == "post":
            yield Intermediate(f"{name} + {written.name}", "the residual stream goes on", "B T D", total)
            x = normalize(total, norm, config)  # (B, T, D)
            yield Intermediate(after, f"norm({name} + {written.name})", "B T D", x)
        else:
            x = total
            yield Intermediate(after, f"{name} + {written.name}", "B T D", x)
        name = after


def _self_attention(x: Array, name: str, weights: Weights, config: ModelConfig) -> Iterator[Intermediate]:
    positions = np.arange(x.shape[1])[np.newaxis]  # (1, T)
    steps = attend(x, x, weights, config, AttentionInputs(may_attend(positions, positions, causal=True)))
    return _attention("self-attention", steps, name, name, "T")


def _cross_attention(
    x: Array, name: str, memory: Array, weights: Weights, config: ModelConfig
) -> Iterator[Intermediate]:
    positions = np.arange(x.shape[1])[np.newaxis]  # (1, T)
    source_positions = np.arange(memory.shape[1])[np.newaxis]  # (1, T_src)
    steps = attend(x, memory, weights, config, AttentionInputs(may_attend(positions, source_positions, causal=False)))
    return _attention("cross-attention", steps, name, "memory", "T_src")


def _attention(label: str, steps: AttentionSteps, x: str, memory: str, T_k: str) -> Iterator[Intermediate]:
    attended = "the tokens up to its own" if T_k == "T" else "all of the source"
    yield Intermediate(f"{label} query", f"{x} W_query, cut into heads", "B H T K", steps.query)
    yield Intermediate(f"{label} key", f"{memory} W_key, cut into heads", f"B H {T_k} K", steps.key)
    yield Intermediate(f"{label} value", f"{memory} W_value, cut into heads", f"B H {T_k} K", steps.value)
    yield Intermediate(f"{label} scores", "query key^T / sqrt(K)", f"B H T {T_k}", steps.scores)
    yield Intermediate(f"{label} weights", f"softmax of the scores over {attended}", f"B H T {T_k}", steps.weights)
    yield Intermediate(f"{label} mixed", "weights value", "B H T K", steps.mixed)
    yield Intermediate(label, "heads side by side, times W_output", "B T D", steps.output)


def _feedforward(x: Array, name: str, weights: Weights, config: ModelConfig) -> Iterator[Intermediate]:
    steps = feed_forward(x, weights, config.feedforward)
    yield Intermediate("ffn up", f"{name} W_up", "B T d_ff", steps.up)
    yield Intermediate("ffn hidden", "max(up, 0)", "B T d_ff", steps.hidden)
    yield Intermediate("ffn", "hidden W_down", "B T D", steps.output)
