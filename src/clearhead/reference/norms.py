"""Normalization of the last axis."""

from collections.abc import Callable

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Array, Weights


def layernorm(x: Array, weights: Weights, epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias (Ba et al. 2016, arXiv 1607.06450, equation 4).

    (..., D) -> (..., D). The variance divides by D, not by D - 1.
    """
    mean: Array = x.mean(axis=-1, keepdims=True)  # (..., 1)
    variance: Array = ((x - mean) ** 2).mean(axis=-1, keepdims=True)  # (..., 1)
    return (x - mean) / np.sqrt(variance + epsilon) * weights["weight"] + weights["bias"]


def rmsnorm(x: Array, weights: Weights, epsilon: float) -> Array:
    """x / sqrt(mean(x^2) + epsilon) * weight (Zhang & Sennrich 2019, arXiv 1910.07467, equation 4).

    (..., D) -> (..., D).
    """
    mean_square: Array = (x**2).mean(axis=-1, keepdims=True)  # (..., 1)
    return x / np.sqrt(mean_square + epsilon) * weights["weight"]


def rmsnorm_plus_one(x: Array, weights: Weights, epsilon: float) -> Array:
    """x / sqrt(mean(x^2) + epsilon) * (1 + weight) (Gemma Team 2024, arXiv 2403.08295, in its code).

    (..., D) -> (..., D).
    """
    return rmsnorm(x, {"weight": 1 + weights["weight"]}, epsilon)


NORMS: dict[str, Callable[[Array, Weights, float], Array]] = {
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "rmsnorm_plus_one": rmsnorm_plus_one,
}


def normalize(x: Array, weights: Weights, config: ModelConfig) -> Array:
    """The config's kind of norm: (..., D) -> (..., D)."""
    return NORMS[config.norm](x, weights, config.norm_eps)
