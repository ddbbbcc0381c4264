"""Normalization of the last axis: each norm with its gradient and its weights."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Array, Gradient, Shape, Weights


def layernorm(x: Array, weights: Weights, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016, arXiv 1607.06450, equation 4).

    (..., D) -> (..., D). The variance divides by D, not by D - 1.
    """
    mean: Array = x.mean(axis=-1, keepdims=True)  # (..., 1)
    variance: Array = ((x - mean) ** 2).mean(axis=-1, keepdims=True)  # (..., 1)
    return (x - mean) / np.sqrt(variance + eps) * weights["weight"] + weights["bias"]


def layernorm_gradient(d_output: Array, x: Array, weights: Weights, eps: float) -> Gradient:
    """Of y = n w + b with n = (x - mean) / s and s = sqrt(variance + eps).

    Mean and variance move with every number of the row. With g = dy w, which is dn:
    dx = (g - mean(g) - n mean(g n)) / s; the second term is the mean's doing, the third the variance's.
    """
    centred = x - x.mean(axis=-1, keepdims=True)  # (..., D)
    s = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)  # (..., 1)
    n = centred / s  # (..., D)
    g = d_output * weights["weight"]  # (..., D)
    d_x = (g - g.mean(axis=-1, keepdims=True) - n * (g * n).mean(axis=-1, keepdims=True)) / s  # (..., D)
    rows = tuple(range(x.ndim - 1))  # all axes but the last
    return Gradient(d_x, {"weight": (d_output * n).sum(axis=rows), "bias": d_output.sum(axis=rows)})  # (D,) each


def rmsnorm(x: Array, weights: Weights, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019, arXiv 1910.07467, equation 4).

    (..., D) -> (..., D).
    """
    mean_square: Array = (x**2).mean(axis=-1, keepdims=True)  # (..., 1)
    return x / np.sqrt(mean_square + eps) * weights["weight"]


def rmsnorm_gradient(d_output: Array, x: Array, weights: Weights, eps: float) -> Gradient:
    """Of y = n w with n = x / s and s = sqrt(mean(x^2) + eps): with g = dy w, dx = (g - n mean(g n)) / s."""
    s = np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)  # (..., 1)
    n = x / s  # (..., D)
    g = d_output * weights["weight"]  # (..., D)
    d_x = (g - n * (g * n).mean(axis=-1, keepdims=True)) / s  # (..., D)
    return Gradient(d_x, {"weight": (d_output * n).sum(axis=tuple(range(x.ndim - 1)))})  # (D,)


def rmsnorm_plus_one(x: Array, weights: Weights, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * (1 + weight) (Gemma Team 2024, arXiv 2403.08295, in its code).

    (..., D) -> (..., D).
    """
    return rmsnorm(x, {"weight": 1 + weights["weight"]}, eps)


def rmsnorm_plus_one_gradient(d_output: Array, x: Array, weights: Weights, eps: float) -> Gradient:
    """Of RMSNorm with the scale 1 + w: d(1 + w) is dw."""
    return rmsnorm_gradient(d_output, x, {"weight": 1 + weights["weight"]}, eps)


def scale_and_shift(width: int) -> dict[str, Shape]:
    """The weights of a LayerNorm."""
    return {"weight": (width,), "bias": (width,)}


def scale(width: int) -> dict[str, Shape]:
    """The weights of an RMSNorm."""
    return {"weight": (width,)}


class NormKind(NamedTuple):
    """A kind of norm: its equation, its gradient, and its weights' shapes at a width."""

    forward: Callable[[Array, Weights, float], Array]
    gradient: Callable[[Array, Array, Weights, float], Gradient]
    shapes: Callable[[int], dict[str, Shape]]


NORMS: dict[str, NormKind] = {
    "layernorm": NormKind(layernorm, layernorm_gradient, scale_and_shift),
    "rmsnorm": NormKind(rmsnorm, rmsnorm_gradient, scale),
    "rmsnorm_plus_one": NormKind(rmsnorm_plus_one, rmsnorm_plus_one_gradient, scale),
}


def normalize(x: Array, weights: Weights, config: ModelConfig) -> Array:
    """The config's kind of norm: (..., D) -> (..., D)."""
    return NORMS[config.norm].forward(x, weights, config.norm_eps)
