"""Losses that are nearly cross-entropies, known by their gradients: another axis or order, or a softmax too many.

Each of them is the sum of what it takes for the log-probabilities of the targets; the table says what that is.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.doctor.probes.loss import STRAIGHT, Xray

UNLIKE = 0.045  # of a gradient: less than this is left over by one at a cosine of 0.999
EXACT = 1e-5  # of a gradient: what rounding leaves over by the very loss


class Slip(NamedTuple):
    """A known mistake: its fault, how it shows, and what it takes for log-probabilities (B, T, V) of such logits."""

    id: str
    witness: str
    log_p: Callable[[Tensor], Tensor]


def _viewed(logits: Tensor) -> Tensor:
    B, T, V = logits.shape
    return logits.reshape(B, V, T).log_softmax(1).transpose(1, 2)


SLIPS = (
    Slip("L03", "its gradient is that of cross_entropy(softmax(logits))", lambda x: x.softmax(-1).log_softmax(-1)),
    Slip("L04", "its gradient touches one logit of each position, and raises it without limit", lambda x: x),
    Slip(
        "L04",
        "the weight of a position is the probability of its target: the logarithm is missing",
        lambda x: x.softmax(-1),
    ),
    Slip("L07", "its gradient is that of cross_entropy(logits.view(B, V, T))", _viewed),
    Slip("L07", "its gradient is that of log_softmax(logits, dim=1)", lambda x: x.log_softmax(1)),
    Slip("L07", "its gradient is that of log_softmax(logits, dim=0)", lambda x: x.log_softmax(0)),
    Slip(
        "L07",
        "its gradient is that of cross_entropy(logits.transpose(1, 2).reshape(-1, V))",
        lambda x: x.transpose(1, 2).reshape(x.shape).log_softmax(-1),
    ),
)


def slip_in(reading: Xray, logits: Tensor, pad_id: int | None) -> Slip | None:
    """The mistake that explains a gradient, and ten times better than a cross-entropy of the same targets does."""
    close = STRAIGHT if reading.residual <= STRAIGHT else UNLIKE
    for targets in _targets(reading, pad_id):
        plain = _left_over(lambda x: x.log_softmax(-1), reading.gradient, logits, targets)
        for slip in SLIPS if plain > EXACT else ():
            if _left_over(slip.log_p, reading.gradient, logits, targets) < min(close, 0.1 * plain):
                return slip
    return None


def _targets(reading: Xray, pad_id: int | None) -> Iterator[Tensor]:
    """What the first positions may be asked for (B, L), -1 for nothing: as the X-ray has it, or else shifted ids."""
    yield reading.targets
    if reading.residual > STRAIGHT:
        _, T, V = reading.gradient.shape
        silent = ~reading.gradient.any(-1)  # (B, T)
        for offset, ignored in product((1, 0, 2), {pad_id, None}):
            known = reading.ids[:, offset:]
            yield known.masked_fill((known == ignored) | (known >= V) | silent[:, : T - offset], -1)


def _left_over(log_p: Callable[[Tensor], Tensor], gradient: Tensor, logits: Tensor, targets: Tensor) -> float:
    """What is left of a gradient (B, T, V) without its part along that of the log-probabilities of targets, relative.

    Positions behind the targets (B, L) are not part of the loss if they have no gradient. Else their targets are not
    known, and the logits that they are read from do not count.
    """
    L = targets.shape[1]
    if not gradient[:, L:].any():
        gradient, logits = gradient[:, :L], logits[:, :L]
    with torch.enable_grad():
        leaf = logits.detach().float().clone().requires_grad_()
        scores = log_p(leaf)
        log_likelihood = scores[:, :L].gather(-1, targets.clamp_min(0)[..., None])[..., 0][targets >= 0]
        (other,) = torch.autograd.grad(log_likelihood.sum(), leaf, retain_graph=True)
        (behind,) = torch.autograd.grad(scores[:, L:].square().sum(), leaf)
    first, second = (slope[behind == 0].double() for slope in (gradient, other))
    rest = first - second * (first @ second) / (second @ second).clamp_min(1e-30)
    return float(rest.norm() / first.norm()) if first.any() else 1.0


def are_turned(reading: Xray) -> bool:
    """Whether targets were flattened time first and logits batch first, or the other way round."""
    B, T = reading.ids.shape
    for length in (T, T - 1):  # as they are, or the next ones
        kept = reading.ids[:, T - length :]
        for other in (kept.t().reshape(B, length), kept.reshape(length, B).t()):
            targets = reading.targets[:, :length]
            if bool((targets == other)[targets >= 0].all()) and bool((reading.targets[:, length:] < 0).all()):
                return bool((targets >= 0).any())
    return False
