"""Which tokens a logit comes from: gradient x input, and integrated gradients.

Sundararajan, Taly and Yan 2017, "Axiomatic Attribution for Deep Networks", arXiv 1703.01365.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from clearhead.errors import UsageError
from clearhead.inspection.attribution.view import Attribution, Method
from clearhead.inspection.capture.intervention import Edit, intervene
from clearhead.inspection.capture.trace import Array
from clearhead.models import LanguageModel
from clearhead.models.eval_mode import evaluating
from clearhead.parts.embedding import refuse_unknown_ids

Ids = Sequence[int] | Tensor
AT_ONCE = 4096  # tokens that are computed together, all rows counted
PANELS, POINTS = 8, 4  # parts of the line that an integral begins with, and gradients in each
TOLERANCE = 0.005  # of the sum of all scores, that may be missing from an integral
# Modules that look up vectors by tokens, which are the inputs that a logit is attributed to; the source's is first.
LOOKED_UP = ("source_embedding", "embedding", "embedding_ngrams", "logit_ngrams")


def attribute(
    model: LanguageModel,
    ids: Ids,
    position: int = -1,
    *,
    source: Ids | None = None,
    target: int | None = None,
    contrast: int | None = None,
    method: Method = "integrated_gradients",
    steps: int = 512,
) -> Attribution:
    """How much each token adds to a logit.

    A token's input is its vector in the embedding, without its position; what n-gram tables add belongs to the last of
    the n tokens. Integrated gradients take it from zero to its value and add up the gradients on the way, so that the
    scores add up to what the logit gains (`Attribution.gap`). A logit alone also counts what all tokens gain alike; the
    difference from a `contrast` tells why this token rather than that one (Yin & Neubig 2022, arXiv 2202.10419).

    Args:
        model: in any mode; dropout is off and it is left as it was.
        ids: the prompt, (T,) or (1, T); for a translator what the decoder reads, its start token included.
        position: whose logits to look at; below 0, counted from the end.
        source: for a translator, what the encoder reads.
        target: a token; the likeliest by default.
        contrast: a token whose logit is subtracted.
        method: integrated gradients, or the product of gradient and input: one step, right where the model is linear.
        steps: of integrated gradients, at most; it ends sooner where the scores add up to half a percent.

    Raises:
        UsageError: an argument is invalid.
    """
    if method not in get_args(Method):
        raise UsageError(f"`method` is {' or '.join(map(repr, get_args(Method)))}, not {method!r}")
    if steps < 1:
        raise UsageError(f"`steps` is at least 1, not {steps}")
    inputs = model_inputs(model, ids, source)
    position = checked_position(position, inputs[-1].shape[1])
    with evaluating(model):
        line = InputPath(model, inputs, position)
        baseline, logits = line.logits_at([0.0, 1.0]).detach()  # (V,) each
        target = int(logits.argmax()) if target is None else target
        direction = aim(model, target, contrast)
        is_integral = method == "integrated_gradients"
        scores = (
            integral(line, direction, steps) if is_integral else [rows[0] for rows in line.products(direction, [1.0])]
        )
    return Attribution(
        scores=scores[-1],
        source_scores=None if source is None else scores[0],
        position=position,
        target=target,
        contrast=contrast,
        method=method,
        value=float(logits @ direction),
        baseline=float(baseline @ direction),
    )


def aim(model: LanguageModel, target: int, contrast: int | None) -> Tensor:
    """What a logit is as a product with all logits, (V,): 1 at the target, -1 at the contrast.

    Raises:
        InputError: one of them is no token.
    """
    size = model.config.vocab_size
    refuse_unknown_ids(torch.tensor([target, target if contrast is None else contrast]), size)
    direction = torch.zeros(size, dtype=next(model.parameters()).dtype, device=model.device)
    direction[target] += 1
    if contrast is not None:
        direction[contrast] -= 1
    return direction


class InputPath:
    """A model on the straight line from no input, where all that is looked up by tokens is zero, to its input."""

    def __init__(self, model: LanguageModel, inputs: tuple[Tensor, ...], position: int) -> None:
        self.model, self.inputs, self.position = model, inputs, position
        self.rows = max(1, AT_ONCE // sum(ids.shape[1] for ids in inputs))
        self.modules = [name for name, _ in model.named_modules() if name in LOOKED_UP]
        self.is_shared = len(inputs) > 1 and "source_embedding" not in self.modules  # one table, used for both sides
        self.vectors: list[tuple[int, Tensor, Tensor]] = []  # of each look-up: its side, (T, D), and scaled (n, T, D)

    def logits_at(self, shares: Sequence[float]) -> Tensor:
        """The logits at the position, (n, V), where the inputs are these shares of themselves."""
        self.vectors = []
        scales = torch.tensor(shares, dtype=next(self.model.parameters()).dtype, device=self.model.device)
        edits: dict[str, Edit] = {name: partial(self._scale, name, scales) for name in self.modules}
        inputs = (ids.expand(len(shares), -1) for ids in self.inputs)
        with torch.enable_grad(), intervene(self.model, edits):
            hidden = self.model.body(*inputs)[:, self.position]  # (n, D)
            return self.model.head(hidden)

    def _scale(self, name: str, scales: Tensor, value: Tensor) -> Tensor:
        first = name == "source_embedding" or (self.is_shared and not self.vectors)
        vectors = value[0].detach()  # (T, D), as in every row
        scaled = (scales[:, None, None] * vectors).requires_grad_()
        self.vectors.append((0 if first else len(self.inputs) - 1, vectors, scaled))
        return scaled

    def products(self, direction: Tensor, shares: Sequence[float]) -> list[Array]:
        """For each side, its tokens' vectors times the gradient at each of the shares, (n, T)."""
        products = [np.zeros((len(shares), ids.shape[1])) for ids in self.inputs]
        for start in range(0, len(shares), self.rows):
            total = (self.logits_at(shares[start : start + self.rows]) @ direction).sum()
            gradients = torch.autograd.grad(total, [scaled for *_, scaled in self.vectors], allow_unused=True)
            for (side, vectors, _), gradient in zip(self.vectors, gradients, strict=True):
                if gradient is not None:
                    product = (gradient.cpu().double() * vectors.cpu().double()).sum(-1)  # (n, T); MPS has no float64
                    products[side][start : start + self.rows] += product.numpy()
        return products

    def values(self, direction: Tensor, shares: Sequence[float]) -> list[float]:
        """The products of the logits with the direction, without gradients."""
        starts = range(0, len(shares), self.rows)
        parts = [self.logits_at(shares[start : start + self.rows]).detach() @ direction for start in starts]
        return torch.cat(parts).cpu().double().tolist() if parts else []


@dataclass(frozen=True)
class Panel:
    """A part of the line: its ends, each side's integral (T,), and what these lack of the difference of the values."""

    start: float
    end: float
    scores: list[Array]
    gap: float


def integral(line: InputPath, direction: Tensor, steps: int) -> list[Array]:
    """The gradients along the line times the vectors, integrated, (T,) for each side.

    Of each part of the line it is known what the scores have to add up to: the difference of the values at its ends.
    The parts that are off by most are halved, until what is missing of the whole is small or the steps are used up. A
    norm makes a large vector of a small one, so most happens near zero, where the parts are shorter from the start.
    """
    n_panels = max(1, min(PANELS, steps // POINTS))
    panels = measured(line, direction, list(pairwise((index / n_panels) ** 5 for index in range(n_panels + 1))))
    steps -= n_panels * POINTS
    while True:
        sums = [np.sum(scores, axis=0) for scores in zip(*(panel.scores for panel in panels), strict=True)]
        size = sum(np.abs(scores).sum() for scores in sums)
        panels.sort(key=lambda panel: -abs(panel.gap))
        off = [panel for panel in panels if abs(panel.gap) > TOLERANCE * size / len(panels)]
        off = off[: steps // (2 * POINTS)]
        if not off or sum(abs(panel.gap) for panel in panels) <= TOLERANCE * size:
            return sums
        halves = [(panel.start, (panel.start + panel.end) / 2) for panel in off]
        halves += [((panel.start + panel.end) / 2, panel.end) for panel in off]
        panels = panels[len(off) :] + measured(line, direction, halves)
        steps -= len(halves) * POINTS


def measured(line: InputPath, direction: Tensor, ends: Sequence[tuple[float, float]]) -> list[Panel]:
    """The integral over each part of the line, by Gauss and Legendre's points."""
    at, weights = np.polynomial.legendre.leggauss(POINTS)  # from -1 to 1
    widths = np.array([end - start for start, end in ends])
    shares = np.array([start for start, _ in ends])[:, None] + widths[:, None] * (at + 1) / 2  # (panels, POINTS)
    products = line.products(direction, shares.flatten().tolist())
    scores = [
        (side.reshape(*shares.shape, -1) * (weights / 2)[:, None]).sum(1) * widths[:, None] for side in products
    ]  # (panels * POINTS, T) -> (panels, POINTS, T) -> (panels, T)
    edges = sorted({edge for panel in ends for edge in panel})
    values = dict(zip(edges, line.values(direction, edges), strict=True))
    return [
        Panel(start, end, parts, values[end] - values[start] - float(sum(part.sum() for part in parts)))
        for (start, end), *parts in zip(ends, *scores, strict=True)
    ]


def checked_position(position: int, length: int) -> int:
    """Counted from 0.

    Raises:
        UsageError: there is no such token.
    """
    if not -length <= position < length:
        raise UsageError(f"there is no position {position}: the model reads {length} tokens, counted from 0")
    return position % length


def model_inputs(model: LanguageModel, ids: Ids, source: Ids | None) -> tuple[Tensor, ...]:
    """What the model is called with, (1, T) each.

    Raises:
        UsageError: a translator has no source, or another model has one; or there are several texts.
    """
    is_translator = model.config.architecture == "encoder_decoder"
    if is_translator != (source is not None):
        raise UsageError(f"{'a' if is_translator else 'only a'} translator reads a `source` beside `ids`")
    sides = [torch.as_tensor(side, device=model.device) for side in (source, ids) if side is not None]
    if any(len(side) != 1 for side in sides if side.dim() > 1):
        raise UsageError("this looks at one text at a time: give the ids of one, (T,) or (1, T)")
    return tuple(side.view(1, -1) for side in sides)
