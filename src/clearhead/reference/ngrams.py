"""Tables of n-grams: learned vectors of the last two, three, ... tokens, token by token.

Ids are shifted by one; 0 means no token. Positions are (B, T), -1 for padding.
"""

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Array, Ids, Weights

PRIME, MULTIPLIER = 2**31 - 1, 1_327_217_885


def ngram_vectors(
    ids: Ids, positions: Ids, documents: Ids | None, weights: Weights, config: ModelConfig, longest: int
) -> Array:
    """The sum of the vectors of each token's bigram, trigram, ... up to the `longest`: (B, T) -> (B, T, D)."""
    table = weights["weight"]  # (rows of all lengths, D)
    x = np.zeros((*ids.shape, config.d_model))
    for b, t in np.ndindex(ids.shape):
        real = [column for column in range(t + 1) if positions[b, column] >= 0]
        for n, start in table_starts(config, longest).items():
            gram = [
                int(ids[b, column]) + 1 if documents is None or documents[b, column] == documents[b, t] else 0
                for column in real[-n:]
            ]
            x[b, t] += table[start + ngram_row([0] * (n - len(gram)) + gram, config)]
    return x


def table_starts(config: ModelConfig, longest: int) -> dict[int, int]:
    """For each length of n-grams the row where theirs begin."""
    return {n: sum(table_size(shorter, config) for shorter in range(2, n)) for n in range(2, longest + 1)}


def table_size(n: int, config: ModelConfig) -> int:
    """Rows for the n-grams of one length."""
    return min(_possible(n, config), config.ngram_rows)


def ngram_row(gram: list[int], config: ModelConfig) -> int:
    """The n-gram as a number of n digits, where there are rows for all of them, or else a hash (Karp & Rabin 1987)."""
    size, row = table_size(len(gram), config), 0
    is_exact = size == _possible(len(gram), config)
    for token in gram:
        row = row * (config.vocab_size + 1) + token if is_exact else (row * MULTIPLIER + token) % PRIME
    return row % size


def _possible(n: int, config: ModelConfig) -> int:
    count: int = (config.vocab_size + 1) ** n
    return count
