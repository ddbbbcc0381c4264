"""Attention: self and cross, multi-head and grouped-query, each query on its own over the keys that it may see."""

import math
from typing import NamedTuple

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Allowed, Array, Weights, linear, subtree
from clearhead.reference.norms import rmsnorm
from clearhead.reference.positions import apply_rotary


class AttentionSteps(NamedTuple):
    """What attention computes, in order. Keys and values have been repeated for the query heads that they serve."""

    query: Array  # (B, H, T_q, K)
    key: Array  # (B, H, T_k, K)
    value: Array  # (B, H, T_k, K)
    scores: Array  # (B, H, T_q, T_k)
    weights: Array  # (B, H, T_q, T_k)
    mixed: Array  # (B, H, T_q, K)
    output: Array  # (B, T_q, D)


class AttentionInputs(NamedTuple):
    """The mask, the rotary angles and score bias of the positions, and a list that keeps the steps, if there is one."""

    allowed: Allowed  # (B, T_q, T_k), from `may_attend`
    angles: Array | None = None  # (B, T, K/2), from `rotary`; in self-attention
    bias: Array | None = None  # (B, H, T_q, T_k), added to the scores
    kept: list[AttentionSteps] | None = None  # each attention appends its steps


def attend(x: Array, memory: Array, weights: Weights, config: ModelConfig, inputs: AttentionInputs) -> AttentionSteps:
    """softmax(q k^T / sqrt(K) + bias) v for each head (Vaswani et al. 2017, section 3.2), step by step.

    Fewer heads of keys and values each serve a group of query heads (Ainslie et al. 2023, arXiv 2305.13245). With
    qk_norm, queries and keys are normalized head by head before they meet (Henry et al. 2020, arXiv 2010.04245; here by
    RMSNorm, as in Qwen3).

    Args:
        x: (B, T_q, D), projected to queries.
        memory: (B, T_k, D), projected to keys and values; in self-attention, x.
    """
    query = split_heads(linear(x, weights, "query"), config.n_heads)  # (B, H, T_q, K)
    key = split_heads(linear(memory, weights, "key"), config.n_kv_heads)  # (B, H_kv, T_k, K)
    value = split_heads(linear(memory, weights, "value"), config.n_kv_heads)  # (B, H_kv, T_k, K)
    if config.qk_norm:
        query = rmsnorm(query, subtree(weights, "query_norm"), config.norm_eps)  # (B, H, T_q, K)
        key = rmsnorm(key, subtree(weights, "key_norm"), config.norm_eps)  # (B, H_kv, T_k, K)
    if inputs.angles is not None:
        query = apply_rotary(query, inputs.angles)  # (B, H, T_q, K)
        key = apply_rotary(key, inputs.angles)  # (B, H_kv, T_k, K)
    key, value = repeat_kv(key, config.n_heads), repeat_kv(value, config.n_heads)  # (B, H, T_k, K)
    scores = score(query, key, config)  # (B, H, T_q, T_k)
    if inputs.bias is not None:
        scores = scores + inputs.bias  # (B, H, T_q, T_k)
    shares = masked_softmax(scores, inputs.allowed)  # (B, H, T_q, T_k)
    mixed = shares @ value  # (B, H, T_q, T_k) (B, H, T_k, K) -> (B, H, T_q, K)
    output = linear(merge_heads(mixed), weights, "output")  # (B, T_q, H * K) -> (B, T_q, D)
    steps = AttentionSteps(query, key, value, scores, shares, mixed, output)
    if inputs.kept is not None:
        inputs.kept.append(steps)
    return steps


def score(query: Array, key: Array, config: ModelConfig) -> Array:
    """How well each query fits each key: (B, H, T_q, K), (B, H, T_k, K) -> (B, H, T_q, T_k).

    With a soft cap c a score s becomes c tanh(s / c) (Gemma Team 2024, arXiv 2408.00118, section 2).
    """
    scores: Array = query @ key.swapaxes(-1, -2) * score_scale(config)  # (B, H, T_q, K) (B, H, K, T_k)
    cap = config.attention_softcap
    return scores if cap is None else cap * np.tanh(scores / cap)


def score_gradient(d_scores: Array, query: Array, key: Array, config: ModelConfig) -> tuple[Array, Array]:
    """Of `score`, at the queries and at the keys: (B, H, T_q, T_k) -> (B, H, T_q, K), (B, H, T_k, K).

    The derivative of c tanh(s / c) is 1 - tanh(s / c)^2.
    """
    d_products = d_scores * score_scale(config)  # (B, H, T_q, T_k)
    if config.attention_softcap is not None:
        d_products = d_products * (1 - (score(query, key, config) / config.attention_softcap) ** 2)
    return d_products @ key, d_products.swapaxes(-1, -2) @ query


def score_scale(config: ModelConfig) -> float:
    """1 / sqrt(K), or 1 where scores are left as they are (Raffel et al. 2020, arXiv 1910.10683, in T5's code)."""
    return 1 / math.sqrt(config.head_dim) if config.scale_attention else 1.0


def masked_softmax(scores: Array, allowed: Allowed) -> Array:
    """For each query e^score over the sum of those of the keys that it may see; 0 for all other keys.

    (B, H, T_q, T_k) -> (B, H, T_q, T_k). A query that may see nothing gives no key any weight.
    """
    shares = np.zeros_like(scores)  # (B, H, T_q, T_k)
    for b, h, q in np.ndindex(scores.shape[:3]):
        keys = np.flatnonzero(allowed[b, q])  # numbers of the keys that this query may see
        if len(keys):
            powers = np.exp(scores[b, h, q, keys] - scores[b, h, q, keys].max())  # at most 1; the maximum cancels out
            shares[b, h, q, keys] = powers / powers.sum()
    return shares


def repeat_kv(heads: Array, n_heads: int) -> Array:
    """Each head of keys or values once for every query head of its group: (B, H_kv, T, K) -> (B, H, T, K)."""
    group = n_heads // heads.shape[1]  # query heads h with the same h // group share a head
    return np.stack([heads[:, h // group] for h in range(n_heads)], axis=1)  # H of (B, T, K) -> (B, H, T, K)


def split_heads(x: Array, n_heads: int) -> Array:
    """(B, T, H * K) -> (B, H, T, K)."""
    B, T, width = x.shape
    return x.reshape(B, T, n_heads, width // n_heads).swapaxes(1, 2)  # (B, T, H, K) -> (B, H, T, K)


def merge_heads(x: Array) -> Array:
    """(B, H, T, K) -> (B, T, H * K)."""
    B, H, T, K = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * K)  # (B, T, H, K) -> (B, T, H * K)
