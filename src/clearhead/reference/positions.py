"""Position encodings: vectors added to embeddings, rotated queries and keys, or biased scores.

Positions are (B, T), -1 for padding. The vectors of padding do not matter, as it is always masked.
"""

from collections.abc import Callable

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Allowed, Array, Ids, Weights


def positions_of(ids: Ids, pad_id: int | None, start_id: int | None = None) -> Ids:
    """Where each token stands in its row, counted without the padding, whichever side that is on: (B, T) -> (B, T).

    A row may begin with a `start_id` that is the `pad_id` too: the one just before the first other token, or the last
    one of a row that has no other.
    """
    positions = np.full(ids.shape, -1, dtype=np.int64)
    for b, row in enumerate(ids):
        real = [t for t, token in enumerate(row) if pad_id is None or token != pad_id]
        if pad_id is not None and pad_id == start_id and real[:1] != [0]:
            real.insert(0, min(real, default=len(row)) - 1)
        positions[b, real] = range(len(real))
    return positions


def may_attend(
    query: Ids, key: Ids, *, causal: bool, window: int | None = None, documents: Ids | None = None
) -> Allowed:
    """Which query may attend to which key, (B, T_q), (B, T_k) -> (B, T_q, T_k), compared pair by pair.

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
        angle = positions / config.rope_theta ** (2 * i / config.d_model)  # (B, T)
        waves[..., 2 * i], waves[..., 2 * i + 1] = np.sin(angle), np.cos(angle)
    return waves


def rotary(positions: Ids, config: ModelConfig) -> Array:
    """The angles t base^(-2i/R) (Su et al. 2021, arXiv 2104.09864, equation 15): (B, T) -> (B, T, R/2).

    R is K, or the share of it that is turned (Black et al. 2022, arXiv 2204.06745, section 2.1.1).
    """
    R = config.rotary_width
    frequencies: Array = config.rope_theta ** (-2 * np.arange(R // 2) / R)  # (R/2,)
    angles: Array = positions[:, :, np.newaxis] * frequencies  # (B, T, 1) (R/2,) -> (B, T, R/2)
    return angles


def apply_rotary(x: Array, angles: Array) -> Array:
    """Heads (B, H, T, K) turned by angles (B, T, R/2), each pair of numbers as one complex number (equation 12 there).

    The pair of number i is number i + R/2, as in the weights that are published; from R on, numbers stay.
    """
    half = angles.shape[-1]  # R/2
    first, second, rest = np.split(x, (half, 2 * half), axis=-1)  # (B, H, T, R/2), (B, H, T, R/2), (B, H, T, K - R)
    turned = (first + 1j * second) * np.exp(1j * angles[:, np.newaxis])  # (B, H, T, R/2) (B, 1, T, R/2)
    return np.concatenate((turned.real, turned.imag, rest), axis=-1)  # (B, H, T, K)


def alibi(query: Ids, key: Ids, weights: Weights, config: ModelConfig, *, causal: bool) -> Array:
    """-slope |t_q - t_k|, a slope for each head (Press et al. 2021, arXiv 2108.12409, section 3).

    (B, T_q), (B, T_k) -> (B, H, T_q, T_k).
    """
    distance: Ids = np.abs(query[:, :, np.newaxis] - key[:, np.newaxis, :])  # (B, T_q, 1) (B, 1, T_k) -> (B, T_q, T_k)
    steepness: Array = np.array(slopes(config.n_heads))[:, np.newaxis, np.newaxis]  # (H, 1, 1)
    penalty: Array = steepness * distance[:, np.newaxis]  # (H, 1, 1) (B, 1, T_q, T_k) -> (B, H, T_q, T_k)
    return -penalty


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


def relative(query: Ids, key: Ids, weights: Weights, config: ModelConfig, *, causal: bool) -> Array:
    """A learned bias for each head and class of distance (Raffel et al. 2020, arXiv 1910.10683, section 2.1).

    (B, T_q), (B, T_k) -> (B, H, T_q, T_k). Bidirectional attention uses half of the buckets for later keys.
    """
    B, T_q, T_k = *query.shape, key.shape[1]
    biases = np.zeros((B, config.n_heads, T_q, T_k))
    for b, q, k in np.ndindex(B, T_q, T_k):
        back = int(query[b, q] - key[b, k])  # how far the key stands behind the query
        if causal:
            bucket = relative_bucket(max(back, 0), config.relative_buckets, config.relative_max_distance)
        else:
            half = config.relative_buckets // 2
            bucket = relative_bucket(abs(back), half, config.relative_max_distance) + (half if back < 0 else 0)
        biases[b, :, q, k] = weights["weight"][bucket]  # (n_buckets, H) -> (H,)
    return biases


def relative_bucket(distance: int, n_classes: int, farthest: int) -> int:
    """Half of the classes hold one distance each; of the others, each reaches further by the same factor.

    With e the first distance that shares a class and m the classes that are shared, class e + i begins where
    distance / e = (farthest / e)^(i/m), asked without roots; the last one holds all that is farther away.
    """
    e = n_classes // 2
    m = n_classes - e
    if distance < e:
        return distance
    i = 0
    while i + 1 < m and distance**m * e ** (i + 1) >= farthest ** (i + 1) * e**m:
        i += 1
    return e + i


# A kind of positions -> what it does, in one of three places; "none" does nothing in any.
ADDED: dict[str, Callable[[Ids, Weights, ModelConfig], Array]] = {"learned": learned, "sinusoidal": sinusoidal}
ROTATED: dict[str, Callable[[Ids, ModelConfig], Array]] = {"rope": rotary}
BIASED: dict[str, Callable[..., Array]] = {"alibi": alibi, "relative": relative}
