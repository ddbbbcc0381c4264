"""Losses that are nearly cross-entropies, known by their gradients: another axis or order, a logarithm too few."""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from clearhead.doctor.probes.loss import IGNORED, Loss, Xray

ALIKE = 0.01  # relative: equal but for rounding
UNLIKE = 0.1  # relative: weights that differ by more are not equal ones


def are_turned(reading: Xray, ids: Tensor) -> bool:
    """Whether targets were flattened time first and logits batch first, or the other way round."""
    B, T = ids.shape
    for length in (T, T - 1):  # as they are, or the next ones
        kept = ids[:, T - length :]
        for other in (kept.t().reshape(B, length), kept.reshape(length, B).t()):
            targets = reading.targets[:, :length]
            if bool((targets == other)[targets >= 0].all()) and bool((reading.targets[:, length:] < 0).all()):
                return bool((targets >= 0).any())
    return False


def are_likelihoods(reading: Xray, logits: Tensor) -> bool:
    """Whether weights are the targets' own probabilities: minus p was asked for, and not minus log p."""
    p = logits.double().softmax(-1).gather(-1, reading.targets.clamp_min(0)[..., None])[..., 0]  # (B, T)
    ratio, weights = (reading.weights / p)[reading.scored], reading.weights[reading.scored]
    if len(weights) < 2 or float(weights.max() - weights.min()) <= UNLIKE * float(weights.abs().max()):
        return False
    return float(ratio.max() - ratio.min()) <= ALIKE * float(ratio.abs().max())


def wrong_axes(ids: Tensor) -> Iterator[tuple[str, Loss]]:
    """Cross-entropies whose classes lie along time or the batch, or are scattered by a reshape."""
    B, T = ids.shape

    def likelihood(axis: int, length: int) -> Loss:
        def loss(x: Tensor, ids: Tensor) -> Tensor:
            targets = ids[:, T - length :]
            log_likelihood = (
                x[:, :length].log_softmax(axis).gather(-1, targets.clamp(0, x.shape[-1] - 1)[..., None])[..., 0]
            )
            return -(log_likelihood * (targets >= 0)).sum()

        return loss

    def scattered(length: int) -> Loss:
        def loss(x: Tensor, ids: Tensor) -> Tensor:
            rows = x[:, :length].transpose(1, 2).reshape(B * length, -1)
            targets = ids[:, T - length :].reshape(-1)
            return F.cross_entropy(rows, targets.masked_fill(targets < 0, IGNORED), ignore_index=IGNORED)

        return loss

    for length in (T, T - 1):
        yield "log_softmax(logits, dim=1)", likelihood(1, length)
        yield "log_softmax(logits, dim=0)", likelihood(0, length)
        yield "cross_entropy(logits.transpose(1, 2).reshape(-1, V))", scattered(length)


def rewards_normaliser(gradient: Tensor, logits: Tensor) -> bool:
    """Whether the square of the log of the normalizer is subtracted: a gradient then sums to a negative share of it."""
    total, size = gradient.sum(-1), logits.logsumexp(-1)  # (B, T)
    there = total.abs() > 1e-4 * float(gradient.abs().max())
    if not there.any():
        return False
    share = (total / size)[there]
    return float(share.max()) < 0 and float(share.max() - share.min()) <= ALIKE * float(share.abs().max())
