"""The position-wise feed-forward: widen, bend, narrow."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from clearhead.reference.arrays import Array, Weights, linear

Activation = Callable[[Array], Array]  # (...) -> (...), number by number


def relu(x: Array) -> Array:
    """max(x, 0) (Nair & Hinton 2010)."""
    return np.maximum(x, 0)


def relu_squared(x: Array) -> Array:
    """max(x, 0)^2 (So et al. 2021, arXiv 2109.08668)."""
    return np.maximum(x, 0) ** 2


def gelu(x: Array) -> Array:
    """x Phi(x), where Phi(x) = (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel 2016, arXiv 1606.08415, section 2)."""
    return x * normal_cdf(x)


def normal_cdf(x: Array) -> Array:
    """Phi(x): how likely a number of the standard normal distribution is below x."""
    return np.array([(1 + math.erf(number / math.sqrt(2))) / 2 for number in x.flat]).reshape(x.shape)  # (N,) -> (...)


def gelu_tanh(x: Array) -> Array:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, close to `gelu` (the same paper, section 2)."""
    t: Array = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x * (1 + t) / 2


def silu(x: Array) -> Array:
    """x sigmoid(x) (Elfwing et al. 2017, arXiv 1702.03118; the Swish with beta = 1)."""
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), which is (1 + tanh(x / 2)) / 2 and cannot overflow."""
    return (1 + np.tanh(x / 2)) / 2


class Kind(NamedTuple):
    """A kind of feed-forward: its activation, and whether that bends a gate beside `up`."""

    activation: Activation
    gated: bool = False


FEEDFORWARDS = {
    "relu": Kind(relu),
    "gelu": Kind(gelu),
    "gelu_tanh": Kind(gelu_tanh),
    "silu": Kind(silu),
    "relu2": Kind(relu_squared),
    "swiglu": Kind(silu, gated=True),
    "geglu": Kind(gelu_tanh, gated=True),
}


class FeedForwardSteps(NamedTuple):
    """What a feed-forward computes, in order."""

    up: Array  # (B, T, d_ff)
    gate: Array | None  # (B, T, d_ff) where the kind has one
    hidden: Array  # (B, T, d_ff)
    output: Array  # (B, T, D)


def feed_forward(x: Array, weights: Weights, kind: str) -> FeedForwardSteps:
    """(B, T, D) -> (B, T, D), and what is between.

    down(activation(up(x))) (Vaswani et al. 2017, equation 2), or
    down(activation(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202, equation 6).
    """
    activation, gated = FEEDFORWARDS[kind]
    up = linear(x, weights, "up")  # (B, T, d_ff)
    gate = linear(x, weights, "gate") if gated else None  # (B, T, d_ff)
    hidden = activation(up) if gate is None else activation(gate) * up  # (B, T, d_ff)
    return FeedForwardSteps(up, gate, hidden, linear(hidden, weights, "down"))  # (B, T, D)
