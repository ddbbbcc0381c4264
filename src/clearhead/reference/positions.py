"""How a token knows where it stands: a vector is added to it, its queries and keys are turned, or its scores biased.

Positions are (B, T), -1 for padding. What padding is given does not matter: nobody attends to it.
"""

from collections.abc import Callable

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Allowed, Array, Ids, Weights


def positions_of(ids: Ids, pad_id: int | None) -> Ids:
    """Where each token stands in its row, counted without the padding, whichever side that is on: (B, T) -> (B, T)."""
    positions = np.full(ids.shape, -1, dtype=np.int64)
    for b, row in enumerate(ids):
        real = [t for t, token in enumerate(row) if pad_id is None or token != pad_id]
        positions[b, real] = range(len(real))
    return positions


def may_attend(
    query: Ids, key: Ids, *, causal: bool, window: int | None = None, documents: Ids | None = None
) -> Allowed:
    """Which query may attend to which key, (B, T_q), (B, T_k) -> (B, T_q, T_k), asked of every two of them.

    A key must be a token and not padding; with `causal`, not later than the query; with a `window`, fewer than that
    many places before it (Beltagy et al. 2020, arXiv 2004.05150, section 3.1); with `documents` (B, T), in the same
    one as the query.
    """
    B, T_q, T_k = *query.shape, key.shape[1]
    allowed = np.zeros((B, T_q, T_k), dtype=np.bool_)
    for b, q, k in np.ndindex(B, T_q, T_k):
        is_token = key[b, k] >= 0
        is_past = not causal or key[b, k] <= query[b, q]
        is_near = window is None or query[b, q] - key[b, k] < window
        is_related = documents is None or documents[b, q] == documents[b, k]
        allowed[b, q, k] = is_token and is_past and is_near and is_related
    return allowed


def learned(positions: Ids, weights: Weights, config: ModelConfig) -> Array:
    """Row t of a learned table (Gehring et al. 2017, arXiv 1705.03122, section 3.1): (B, T) -> (B, T, D)."""
    return weights["weight"][positions]


def sinusoidal(positions: Ids, weights: Weights, config: ModelConfig) -> Array:
    """sin(t / base^(2i/D)) in column 2i, its cosine in column 2i + 1 (Vaswani et al. 2017, section 3.5).

    (B, T) -> (B, T, D).
    """
    waves = np.empty((*positions.shape, config.d_model))  # (B, T, D)
    for i in range(config.d_model // 2):
        angle = positions / config.rope_base ** (2 * i / config.d_model)  # (B, T)
        waves[..., 2 * i], waves[..., 2 * i + 1] = np.sin(angle), np.cos(angle)
    return waves


def rotary(positions: Ids, config: ModelConfig) -> Array:
    """The angles t base^(-2i/K) (Su et al. 2021, arXiv 2104.09864, equation 15): (B, T) -> (B, T, K/2)."""
    frequencies: Array = config.rope_base ** (-2 * np.arange(config.head_width // 2) / config.head_width)  # (K/2,)
    angles: Array = positions[:, :, np.newaxis] * frequencies  # (B, T, 1) (K/2,) -> (B, T, K/2)
    return angles


def turn(x: Array, angles: Array) -> Array:
    """Heads (B, H, T, K) turned by angles (B, T, K/2), each pair of numbers as one complex number (equation 12 there).

    The pair of number i is number i + K/2, as in the weights that are published.
    """
    first, second = np.split(x, 2, axis=-1)  # (B, H, T, K/2) each
    turned = (first + 1j * second) * np.exp(1j * angles[:, np.newaxis])  # (B, H, T, K/2) (B, 1, T, K/2)
    return np.concatenate((turned.real, turned.imag), axis=-1)  # (B, H, T, K)


def alibi(query: Ids, key: Ids, weights: Weights, config: ModelConfig) -> Array:
    """-slope |t_q - t_k|, a slope for each head (Press et al. 2021, arXiv 2108.12409, section 3).

    (B, T_q), (B, T_k) -> (B, H, T_q, T_k).
    """
    distance = np.abs(query[:, :, np.newaxis] - key[:, np.newaxis, :])  # (B, T_q, 1) (B, 1, T_k) -> (B, T_q, T_k)
    return -np.array(slopes(config.n_heads))[:, np.newaxis, np.newaxis] * distance[:, np.newaxis]


def slopes(n_heads: int) -> list[float]:
    """2^(-8/H), 2^(-16/H) ... 2^-8 (section 3 there).

    Where H is no power of two: those of the power of two below, then every other one of the power of two above.
    """
    below = 1
    while 2 * below <= n_heads:
        below *= 2
    if below == n_heads:
        return [2.0 ** (-8 * h / n_heads) for h in range(1, n_heads + 1)]
    return [*slopes(below), *slopes(2 * below)[0::2]][:n_heads]


# A kind of positions -> what it does, in one of three places; "none" does nothing in any.
ADDED: dict[str, Callable[[Ids, Weights, ModelConfig], Array]] = {"learned": learned, "sinusoidal": sinusoidal}
TURNED: dict[str, Callable[[Ids, ModelConfig], Array]] = {"rope": rotary}
BIASED: dict[str, Callable[[Ids, Ids, Weights, ModelConfig], Array]] = {"alibi": alibi}
