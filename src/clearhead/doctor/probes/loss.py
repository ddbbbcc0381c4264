"""The X-ray of a loss: what its gradient with respect to the logits says of targets, weights and smoothing.

For a cross-entropy with weight w, target distribution q and p = softmax(logits), the gradient at a position is
w (p_v - q_v) for every token v. Over the tokens that are not the target it is a straight line in p: the slope is the
weight, the intercept the smoothed mass, the outlier the target, and what is left over says whether it is a
cross-entropy of these logits at all. A penalty on the size of the logits adds a multiple of p: the slope is then more
than the target and the smoothing ask for, and they alone are the weight.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FEW = 4  # targets, or distinct ones, of which too little can be said
IGNORED = -100  # the target that torch's cross-entropy does not count
SILENT = 1e-9  # of the largest gradient: below it a position is not scored
STRAIGHT = 1e-3  # of a position's largest gradient: a line fits this well, or it is no cross-entropy
ROUNDED = 1e-3  # of a weight: float32 has too few digits of what is still asked for a target that is nearly sure
SUMMED = 1e-4  # how far from one the probabilities of all tokens may sum
OFFSETS = (1, 0, 2, -1, 3, -2)  # of a target from its position, the likeliest first
Loss = Callable[[Tensor, Tensor], Tensor]  # logits (B, T, V), ids (B, T) -> a number


@dataclass(frozen=True)
class Xray:
    """Per position (B, T): the token that is asked for, -1 where none is; its weight; the mass that is smoothed away.

    `residual`: how badly a cross-entropy explains the gradient, 0 at best and 1 at worst.
    `offset`: where in the row of ids the target stands, counted from its position; None if it differs.
    `wraps`: at the end of a row the target is a token of the next.
    """

    value: float
    targets: Tensor
    weights: Tensor
    smoothing: Tensor
    residual: float
    offset: int | None
    wraps: bool
    gradient: Tensor
    ids: Tensor

    @property
    def scored(self) -> Tensor:
        """(B, T), True where something is asked for."""
        return self.weights.abs() > 0

    def table(self, names: Callable[[int], str] = str) -> str:
        """A line per position: the token there, the one that is asked for, and how much it counts."""
        lines = [f"{'row':>3} {'at':>3}  {'token':>8}  {'target':>8}  {'weight':>8}  {'smoothing':>9}"]
        for row in range(self.ids.shape[0]):
            for column in range(self.ids.shape[1]):
                target = int(self.targets[row, column])
                target_name = names(target) if target >= 0 else "-"
                weight, mass = float(self.weights[row, column]), float(self.smoothing[row, column])
                token = names(int(self.ids[row, column]))
                lines.append(f"{row:>3} {column:>3}  {token:>8}  {target_name:>8}  {weight:>8.5f}  {mass:>9.4f}")
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """All of it in a line."""
        if self.residual > STRAIGHT:
            return f"no cross-entropy of these logits explains the gradient (residual {self.residual:.1e})"
        scored = self.weights[self.scored]
        even = "equal" if len(scored) and float(scored.max() - scored.min()) < 1e-4 * float(scored.max()) else "unequal"
        where = "at no common place" if self.offset is None else f"{self.offset:+d}"
        return (
            f"targets {where}, {len(scored)} of {self.weights.numel()} positions scored, weights {even}, "
            f"sum {float(scored.sum()):.3f}, smoothing {float(self.smoothing[self.scored].mean()):.3f}"
        )


def xray(loss: Loss | Tensor, logits: Tensor, ids: Tensor) -> Xray:
    """What a loss really asks for, token by token.

    Args:
        loss: a function of (logits, ids), or its result for these very logits, with its graph.
        logits: (B, T, V).
        ids: (B, T) tokens among which the targets are looked for: the inputs, or the labels that were given.
    """
    if isinstance(loss, Tensor):
        value = loss
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    else:
        with torch.enable_grad():
            logits = logits.detach().float().clone().requires_grad_()
            value = loss(logits, ids)
        value = value if value.dim() == 0 else value.sum()
        slopes = torch.autograd.grad(value, logits, allow_unused=True) if value.requires_grad else (None,)
        gradient = torch.zeros_like(logits) if slopes[0] is None else slopes[0]
    return read(gradient.detach().double(), logits.detach().double(), ids, float(value.detach()))


def read(gradient: Tensor, logits: Tensor, ids: Tensor, value: float, *, unasked: int | None = None) -> Xray:
    """The X-ray from the gradient (B, T, V) of a loss with respect to logits (B, T, V).

    Args:
        unasked: a token that is given none of the mass that is smoothed away, as padding often is.
    """
    p = logits.softmax(-1)  # (B, T, V)
    largest = gradient.abs().amax(-1)  # (B, T)
    silent = largest <= SILENT * float(largest.max())
    # the target is pulled up most, unless it is so likely already that smoothing pushes it down
    fits = [_fit(gradient, p, candidate, unasked) for candidate in (gradient.argmin(-1), p.argmax(-1))]
    better = fits[1].misfit < 0.5 * fits[0].misfit  # (B, T)
    target, weight, smoothing, misfit = (
        torch.where(better, second, first) for first, second in zip(*fits, strict=True)
    )
    misfit = misfit.masked_fill(silent, 0)
    silent = silent | (weight == 0)
    targets = target.masked_fill(silent, -1)
    offset, wraps = offset_among(targets, ids)
    return Xray(
        value,
        targets,
        weight.masked_fill(silent, 0).float(),
        smoothing.masked_fill(silent, 0).float(),
        float(misfit.max()),
        offset,
        wraps,
        gradient.float(),
        ids,
    )


class LossFit(NamedTuple):
    """A line through the gradients of all tokens but one, at every position (B, T)."""

    target: Tensor
    weight: Tensor  # of the target and of what is smoothed away from it
    smoothing: Tensor  # in torch's convention: spread over all V tokens
    misfit: Tensor  # of the largest gradient


def _fit(gradient: Tensor, p: Tensor, target: Tensor, unasked: int | None) -> LossFit:
    others = torch.ones_like(p).scatter(-1, target[..., None], 0)  # all but the target
    if unasked is not None:
        others[..., unasked] = 0
    mean_p, mean_g = ((x * others).sum(-1, keepdim=True) / others.sum(-1, keepdim=True) for x in (p, gradient))
    away_p, away_g = (p - mean_p) * others, (gradient - mean_g) * others
    slope = (away_p * away_g).sum(-1) / (away_p**2).sum(-1).clamp_min(1e-30)  # (B, T)
    largest = gradient.abs().amax(-1).clamp_min(1e-30)
    bent = (away_g - slope[..., None] * away_p).abs().amax(-1) / largest  # off the line; the target is on none
    mass = slope * mean_p[..., 0] - mean_g[..., 0]  # that is asked for every token but the target
    own_p, own_g = (x.gather(-1, target[..., None])[..., 0] for x in (p, gradient))
    pull = slope * own_p - own_g - mass  # that is asked for the target besides
    n = p.shape[-1] - (unasked is not None)
    asked_mass = pull + n * mass
    excess = slope - asked_mass  # what pushes all logits down beyond that
    is_plain = excess.abs() <= STRAIGHT * slope.abs()
    weight = torch.where(
        is_plain, slope, asked_mass.where(asked_mass.abs() > STRAIGHT * slope.abs(), torch.zeros_like(asked_mass))
    )
    smoothing = n * mass / weight.where(weight != 0, torch.ones_like(weight))
    # asked for, and nothing is pushed down for it
    unanswered = (-excess / torch.maximum(largest, ROUNDED * slope.abs())).clamp_min(0)
    return LossFit(target, weight, smoothing, torch.maximum(bent, unanswered))


def undone(logits: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and their gradient, where a model returns probabilities or the logarithms of them.

    With z = log p the gradient is g - p sum(g) where g is that of log p, and p (g - sum(p g)) where it is that of p.
    """
    first = logits[:1].double()
    if bool((first.logsumexp(-1).abs() < SUMMED).all()):
        return logits, gradient - logits.exp() * gradient.sum(-1, keepdim=True)
    if not is_probability(first) or not bool((gradient.abs() > 1e-7 * gradient.abs().max()).sum(-1).max() <= 1):
        return logits, gradient
    return logits.clamp_min(1e-30).log(), logits * (gradient - (logits * gradient).sum(-1, keepdim=True))


def is_probability(outputs: Tensor) -> bool:
    """Whether every row is without negative numbers and sums to one."""
    return bool((outputs >= 0).all()) and bool(((outputs.double().sum(-1) - 1).abs() < SUMMED).all())


def ahead(ids: Tensor, offset: int) -> Tensor:
    """The ids (B, T) that stand so much further on in their rows; -1 where the row has ended, or not begun."""
    column = torch.arange(ids.shape[1]) + offset
    outside = (column < 0) | (column >= ids.shape[1])
    return ids[:, column.clamp(0, ids.shape[1] - 1)].masked_fill(outside.to(ids.device), -1)


def shares_at_offsets(targets: Tensor, ids: Tensor, few: int = 2) -> dict[int, float]:
    """For each offset, the share of the targets (B, T) that are the ids (B, T) so much further on, within the row.

    Numbers below zero are marks, not tokens, and do not count. `few`: with fewer targets than that nothing is said.
    """
    shares = {}
    for offset in OFFSETS:
        there = ahead(ids, offset)
        known = (targets >= 0) & (there >= 0)
        if int(known.sum()) >= few:
            shares[offset] = float((targets == there)[known].double().mean())
    return shares


def offset_among(targets: Tensor, ids: Tensor) -> tuple[int | None, bool]:
    """How far behind its position each target stands among the ids, and whether rows go on in the next one."""
    following = (targets[:, :, None] == ids.roll(-1, 0)[:, None, :]).any(-1)  # in any place of the next row
    for offset, share in shares_at_offsets(targets, ids, few=1).items():
        flat = ahead(ids.reshape(1, -1), offset).view_as(ids)
        beyond = (targets >= 0) & (ahead(ids, offset) < 0) & (flat >= 0)
        if share == 1 and bool(following[beyond].all()):
            return offset, bool(beyond.any())
    return None, False
