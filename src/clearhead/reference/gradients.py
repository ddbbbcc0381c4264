"""The backward pass by hand, each part's from the chain rule.

A name that begins with `d_` is the derivative of the loss with respect to what follows, and has its shape. Each
function takes the inputs of its forward, after `d_output`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Array, Gradient, Ids, Weights, linear, subtree
from clearhead.reference.attention import AttentionInputs, attend, merge_heads, score_gradient, split_heads
from clearhead.reference.feedforward import FEEDFORWARDS, feed_forward, normal_cdf, sigmoid
from clearhead.reference.loss import IGNORED, log_softmax, smoothed_targets
from clearhead.reference.norms import rmsnorm_gradient
from clearhead.reference.positions import apply_rotary


class AttentionGradient(NamedTuple):
    """Of attention. In self-attention, where `memory` is `x`, the gradient of it is the sum of both."""

    x: Array  # (B, T_q, D), through the queries
    memory: Array  # (B, T_k, D), through the keys and the values
    bias: Array  # (B, H, T_q, T_k), of what was added to the scores
    weights: dict[str, Array]


def linear_gradient(d_output: Array, x: Array, weights: Weights, name: str) -> Gradient:
    """Of y = x W^T + b: dx = dy W, dW = sum over all rows of dy^T x, db = sum over all rows of dy.

    d_output (..., out), x (..., in).
    """
    W = weights[f"{name}.weight"]  # (out, in)
    d_rows, rows = d_output.reshape(-1, W.shape[0]), x.reshape(-1, W.shape[1])  # (N, out), (N, in)
    d_weights = {f"{name}.weight": d_rows.T @ rows}  # (out, N) (N, in) -> (out, in)
    if f"{name}.bias" in weights:
        d_weights[f"{name}.bias"] = d_rows.sum(axis=0)  # (out,)
    return Gradient(d_output @ W, d_weights)  # (..., out) (out, in) -> (..., in)


def relu_slope(x: Array) -> Array:
    """1 where x > 0, else 0; at 0 itself either would do."""
    return np.where(x > 0, 1.0, 0.0)


def relu_squared_slope(x: Array) -> Array:
    """2 max(x, 0)."""
    return 2 * np.maximum(x, 0)


def gelu_slope(x: Array) -> Array:
    """Phi(x) + x phi(x), where phi is the density of the standard normal distribution."""
    return normal_cdf(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def gelu_tanh_slope(x: Array) -> Array:
    """(1 + t) / 2 + x (1 - t^2) u' / 2, where t = tanh(u) and u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    t: Array = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x * (1 - t**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2) / 2


def silu_slope(x: Array) -> Array:
    """s + x s (1 - s), where s is sigmoid(x)."""
    s = sigmoid(x)
    return s + x * s * (1 - s)


# A kind of feed-forward -> the derivative of its activation.
SLOPES: dict[str, Callable[[Array], Array]] = {
    "relu": relu_slope,
    "gelu": gelu_slope,
    "gelu_tanh": gelu_tanh_slope,
    "silu": silu_slope,
    "relu2": relu_squared_slope,
    "swiglu": silu_slope,
    "geglu": gelu_tanh_slope,
}


def feedforward_gradient(d_output: Array, x: Array, weights: Weights, kind: str) -> Gradient:
    """Of down(h) with h = f(up): d_up = dh f'(up); gated, h = f(gate) up: d_up = dh f(gate), d_gate = dh up f'(gate).

    d_output (B, T, D), x (B, T, D).
    """
    activation, slope = FEEDFORWARDS[kind].activation, SLOPES[kind]
    up, gate, hidden, _ = feed_forward(x, weights, kind)  # (B, T, d_ff) each
    d_hidden, of_down = linear_gradient(d_output, hidden, weights, "down")  # (B, T, d_ff)
    if gate is None:
        d_x, of_up = linear_gradient(d_hidden * slope(up), x, weights, "up")  # (B, T, D)
        return Gradient(d_x, of_down | of_up)
    through_up, of_up = linear_gradient(d_hidden * activation(gate), x, weights, "up")  # (B, T, D)
    through_gate, of_gate = linear_gradient(d_hidden * up * slope(gate), x, weights, "gate")  # (B, T, D)
    return Gradient(through_up + through_gate, of_down | of_up | of_gate)


def softmax_gradient(d_shares: Array, shares: Array) -> Array:
    """Of shares p = softmax(s): ds = p (dp - sum(p dp)), over the last axis. A key without a share has no gradient."""
    mean: Array = (shares * d_shares).sum(axis=-1, keepdims=True)  # (..., 1)
    return shares * (d_shares - mean)


def attention_gradient(
    d_output: Array, x: Array, memory: Array, weights: Weights, config: ModelConfig, inputs: AttentionInputs
) -> AttentionGradient:
    """Of `attend`, from the last of its lines to the first.

    d_output (B, T_q, D), x (B, T_q, D), memory (B, T_k, D).
    """
    query, key, value, _, shares, mixed, _ = attend(x, memory, weights, config, inputs)
    d_merged, d_weights = linear_gradient(d_output, merge_heads(mixed), weights, "output")  # (B, T_q, H * K)
    d_mixed = split_heads(d_merged, config.n_heads)  # (B, H, T_q, K)
    d_shares = d_mixed @ value.swapaxes(-1, -2)  # (B, H, T_q, K) (B, H, K, T_k) -> (B, H, T_q, T_k)
    d_value = shares.swapaxes(-1, -2) @ d_mixed  # (B, H, T_k, T_q) (B, H, T_q, K) -> (B, H, T_k, K)
    d_scores = softmax_gradient(d_shares, shares)  # (B, H, T_q, T_k)
    d_query, d_key = score_gradient(d_scores, query, key, config)  # (B, H, T_q, K), (B, H, T_k, K)
    d_key, d_value = _sum_of_groups(d_key, config), _sum_of_groups(d_value, config)  # (B, H_kv, T_k, K)
    if inputs.angles is not None:  # a rotation keeps lengths: its transpose is the rotation back
        d_query, d_key = apply_rotary(d_query, -inputs.angles), apply_rotary(d_key, -inputs.angles)
    if config.qk_norm:
        d_query, of_norm = _through_head_norm(d_query, x, weights, config, "query")  # (B, H, T_q, K)
        d_key, of_other_norm = _through_head_norm(d_key, memory, weights, config, "key")  # (B, H_kv, T_k, K)
        d_weights |= of_norm | of_other_norm
    d_x, of_query = linear_gradient(merge_heads(d_query), x, weights, "query")  # (B, T_q, D)
    through_key, of_key = linear_gradient(merge_heads(d_key), memory, weights, "key")  # (B, T_k, D)
    through_value, of_value = linear_gradient(merge_heads(d_value), memory, weights, "value")  # (B, T_k, D)
    return AttentionGradient(d_x, through_key + through_value, d_scores, d_weights | of_query | of_key | of_value)


def _sum_of_groups(d_heads: Array, config: ModelConfig) -> Array:
    """A head of keys or values serves several query heads, and its gradient is the sum of theirs."""
    B, H, T, K = d_heads.shape
    summed: Array = d_heads.reshape(B, config.n_kv_heads, H // config.n_kv_heads, T, K).sum(axis=2)  # (B, H_kv, T, K)
    return summed


def _through_head_norm(
    d_heads: Array, x: Array, weights: Weights, config: ModelConfig, name: str
) -> tuple[Array, dict[str, Array]]:
    heads = split_heads(linear(x, weights, name), d_heads.shape[1])  # (B, H, T, K), what the norm was given
    norm = subtree(weights, f"{name}_norm")
    d_heads, d_weights = rmsnorm_gradient(d_heads, heads, norm, config.norm_eps)  # (B, H, T, K)
    return d_heads, {f"{name}_norm.weight": d_weights["weight"]}


def cross_entropy_gradient(logits: Array, targets: Ids, share: float = 0.0, over: str = "all") -> Array:
    """Of `cross_entropy`: (p - q) / counted targets, with p = softmax(logits); 0 in a row that is not counted.

    logits (N, V), targets (N,) -> (N, V).
    """
    smoothed = smoothed_targets(targets, logits.shape[-1], share, over)  # (N, V)
    counted = (targets != IGNORED)[:, np.newaxis]  # (N, 1)
    d_logits: Array = (np.exp(log_softmax(logits)) - smoothed) * counted / max(1, counted.sum())  # (N, V)
    return d_logits
