"""Cross entropy, in nats per counted token."""

import numpy as np

from clearhead.reference.arrays import Array, Ids

IGNORED = -100  # a target that is not counted


def log_softmax(logits: Array) -> Array:
    """log p = logit - log(sum(e^logit)): (N, V) -> (N, V)."""
    shifted: Array = logits - logits.max(axis=-1, keepdims=True)  # (N, V); the shift cancels out
    total: Array = np.exp(shifted).sum(axis=-1, keepdims=True)  # (N, 1)
    return shifted - np.log(total)


def smoothed_targets(targets: Ids, V: int, share: float, over: str = "all") -> Array:
    """The distribution that each row should have, (N,) -> (N, V): zeros where the target is not counted.

    The right token keeps 1 - share. `all`: the share is spread over all V tokens, the right one too (Szegedy et al.
    2016, arXiv 1512.00567, section 7); `others`: over the V - 1 others.
    """
    smoothed = np.zeros((len(targets), V))  # (N, V)
    for row, token in enumerate(targets):
        if token != IGNORED:
            smoothed[row] = share / V if over == "all" else share / (V - 1)
            smoothed[row, token] = 1 - share + share / V if over == "all" else 1 - share
    return smoothed


def cross_entropy(logits: Array, targets: Ids, share: float = 0.0, over: str = "all") -> float:
    """-sum_v q_v log p_v, averaged over the counted targets: logits (N, V), targets (N,) -> nats per token."""
    smoothed = smoothed_targets(targets, logits.shape[-1], share, over)  # (N, V)
    return float(-(smoothed * log_softmax(logits)).sum() / max(1, (targets != IGNORED).sum()))
