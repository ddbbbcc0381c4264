"""How sharply each head looks, and where it looks most, in two numbers and a name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clearhead.inspection.capture.trace import Array
from clearhead.inspection.labels import visible
from clearhead.inspection.view import Row

FARTHEST = 4  # tokens before or after, that a head may look at steadily
LABEL = 24  # characters of a token


@dataclass(frozen=True)
class HeadFocus:
    """How a head looks.

    Attributes:
        layer, head: counted from 0.
        entropy: of its weights, in bits, mean over the tokens that have a choice: 0 where each looks at one token.
        target: what it looks at most: a token at a steady distance, or the same token from everywhere.
        share: of the attention that goes there, mean over the same tokens.
    """

    layer: int
    head: int
    entropy: float
    target: str
    share: float

    @property
    def sentence(self) -> str:
        """Without a capital or a full stop."""
        return f"{self.share:.0%} of its attention goes to {self.target}, at an entropy of {self.entropy:.2f} bits"

    def as_dict(self) -> Row:
        """As plain data."""
        return {
            "layer": self.layer,
            "head": self.head,
            "entropy": self.entropy,
            "looks_at": self.target,
            "share": self.share,
        }


def focus_of_heads(weights: Array, allowed: Array, keys: Sequence[str], *, relative: bool) -> list[HeadFocus]:
    """How each head looks, layer by layer.

    Args:
        weights: (L, H, T_q, T_k).
        allowed: (T_q, T_k).
        keys: a text for each token that is attended to.
        relative: whether queries and keys are the same tokens, so that a distance says something.
    """
    chooses = allowed.sum(axis=1) > 1
    rows = chooses if chooses.any() else np.ones_like(chooses)
    chosen = weights[:, :, rows]  # (L, H, rows, T_k)
    logs = np.log2(np.maximum(chosen, np.finfo(np.float32).tiny))
    entropy = -np.einsum("lhqk,lhqk->lhq", chosen, logs).mean(axis=-1, dtype=np.float64) + 0.0  # (L, H), never -0
    targets = list(_targets(chosen, np.flatnonzero(rows), keys, relative))
    shares = np.stack([share for _, share in targets], axis=-1)  # (L, H, targets)
    best = shares.argmax(axis=-1)
    return [
        HeadFocus(layer, head, float(entropy[layer, head]), targets[index][0], float(shares[layer, head, index]))
        for layer, head in np.ndindex(*best.shape)
        for index in [int(best[layer, head])]
    ]


def _targets(chosen: Array, rows: Array, keys: Sequence[str], relative: bool) -> Iterator[tuple[str, Array]]:
    """What a head may look at, with the mean attention that each head pays to it, (L, H)."""
    n_keys = chosen.shape[-1]
    for distance in sorted(range(-FARTHEST, FARTHEST + 1), key=abs) if relative else ():
        columns = rows - distance
        exists = (columns >= 0) & (columns < n_keys)
        if exists.any():
            weights = chosen[:, :, np.flatnonzero(exists), columns[exists]]  # (L, H, rows that have such a key)
            yield _named(distance), weights.sum(axis=-1, dtype=np.float64) / len(rows)
    means = chosen.mean(axis=-2, dtype=np.float64)  # (L, H, T_k)
    for index, key in enumerate(keys):
        yield f"token {index}, “{visible(key, LABEL)}”", means[..., index]


def _named(distance: int) -> str:
    if abs(distance) <= 1:
        return {0: "the token itself", 1: "the previous token", -1: "the next token"}[distance]
    return f"the token {distance} back" if distance > 0 else f"the token {-distance} ahead"
