"""What a loss asks for, against what it should: of a function, of a model's own loss, and of a training's."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.doctor.checks.base import finding
from clearhead.doctor.checks.loss.slips import are_likelihoods, are_turned, rewards_normaliser, wrong_axes
from clearhead.doctor.probes.loss import IGNORED, STRAIGHT, Xray, is_like, misfit, read
from clearhead.doctor.report.findings import Finding, Status

EVEN = 1e-3  # relative difference of weights that are meant to be equal
UNLIKE = 0.045  # misfit of two gradients at the cosine from which they count as alike


def judge(
    seen: Xray, ids: Tensor, logits: Tensor, *, pad_id: int | None, shifts: bool | None = None, ends: bool = False
) -> list[Finding]:
    """The faults that an X-ray shows.

    Args:
        seen: the X-ray, with targets looked for among `ids`.
        pad_id: what stands in `ids` for padding.
        shifts: whether the loss itself must shift by one; None where either will do.
        ends: whether padding is the token that ends a text as well, so that the first of it is to be learned.
    """
    if seen.residual > STRAIGHT and pad_id is not None and pad_id >= 0:
        spared = read(seen.gradient.double(), logits.double(), ids, seen.value, unasked=pad_id)
        seen = spared if spared.residual <= STRAIGHT else seen
    if seen.residual > STRAIGHT:
        return _no_cross_entropy(seen, ids, logits, pad_id)
    if not seen.gradient.any():
        return [finding("I06", "no gradient of it reaches the logits: nothing can learn from it", value=0.0)]
    found = []
    if seen.offset is not None and (seen.offset > 1 or (seen.offset < 0)):
        found.append(too_far(seen.offset))
    elif seen.offset == 1 and shifts is False:
        witness = "the loss of position 3 asks for target 4, where targets usually are shifted already"
        found.append(finding("D02", witness, value=1, threshold=0, status="warn"))
    elif seen.offset == 0 and shifts:
        found.append(the_same_token())
    if seen.wraps:
        row = "the last position of row 0 asks for a token of row 1"
        found.append(finding("D03", row))
    if not found and seen.offset is None and are_turned(seen, ids):
        witness = "targets stand where they would if batch and time were exchanged in one of the two"
        return [finding((("D12", 0.8), ("L07", 0.2)), witness)]
    slip = None if found else arithmetic(seen, ids, logits, pad_id)
    if slip is not None:
        return [slip]
    if not found and are_likelihoods(seen, logits):
        return [finding("L04", "the weight of a position is the probability of its target: the logarithm is missing")]
    return found or _weights(seen, ids, pad_id, ends)


def arithmetic(seen: Xray, ids: Tensor, logits: Tensor, pad_id: int | None = None) -> Finding | None:
    """A slip in computing a cross-entropy, known by its gradient: in a softmax, a logarithm, or the order of axes."""
    if _takes_softmax_twice(seen, ids, logits.float()):
        return finding("L03", "its gradient is that of cross_entropy(softmax(logits))", value=seen.residual)
    if seen.residual <= STRAIGHT:
        return None
    told = partial(finding, value=seen.residual, threshold=STRAIGHT)
    touched = seen.gradient.abs() > 1e-7 * float(seen.gradient.abs().max())
    if int(touched.sum(-1).max()) <= 1:
        return told("L04", "its gradient at a position touches one logit only, and pushes it up without end")
    if _exchanges_axes(seen.gradient, logits.float(), ids, IGNORED if pad_id is None else pad_id):
        return told("L07", "its gradient is that of cross_entropy(logits.view(B, V, T))")
    return None


def _takes_softmax_twice(seen: Xray, ids: Tensor, logits: Tensor) -> bool:
    """Whether the loss takes the softmax of a softmax, even where all logits are nearly equal.

    There the two losses differ by little more than a factor: what counts is which of them explains the gradient.
    """
    close = STRAIGHT if seen.residual <= STRAIGHT else UNLIKE
    for targets in _targets(seen, ids):
        if not bool((targets >= 0).any()):
            continue
        labels = targets.masked_fill(targets < 0, IGNORED).flatten()

        def once(x: Tensor, labels: Tensor = labels) -> Tensor:
            return F.cross_entropy(x.flatten(0, 1), labels, ignore_index=IGNORED)

        def twice(x: Tensor, labels: Tensor = labels) -> Tensor:
            return once(x.softmax(-1), labels)

        off = misfit(twice, seen.gradient, logits)
        if off < close and off < 0.1 * misfit(once, seen.gradient, logits):
            return True
    return False


def _targets(seen: Xray, ids: Tensor) -> Iterator[Tensor]:
    """What the loss can ask for (B, T), -1 where nothing: as the X-ray has it, or if that fits badly, as ids stand."""
    yield seen.targets
    if seen.residual <= STRAIGHT:
        return
    B, T, V = seen.gradient.shape
    for offset in (1, 0, 2):
        shifted = torch.full((B, T), -1)
        shifted[:, : T - offset] = ids[:B, offset:]
        yield shifted.masked_fill((seen.targets < 0) | (shifted >= V), -1)


def _exchanges_axes(gradient: Tensor, logits: Tensor, ids: Tensor, pad_id: int) -> bool:
    """Whether the loss reads logits (B, T, V) as (B, V, T), of labels as they are or of the next ones."""
    B, T, V = logits.shape
    known = torch.where(ids[:B] == pad_id, pad_id, ids[:B].clamp(0, V - 1))
    for offset in (0, 1):
        columns = T - offset

        def exchanged(x: Tensor, labels: Tensor, columns: int = columns) -> Tensor:
            return F.cross_entropy(x.reshape(B, V, T)[:, :, :columns], labels, ignore_index=pad_id)

        part = gradient.reshape(B, V, T).clone()
        part[:, :, columns:] = 0
        if is_like(exchanged, part.reshape(B, T, V), logits, known[:, offset:]):
            return True
    return False


def too_far(offset: int) -> Finding:
    """What is asked for is neither the token of the position nor the next."""
    return finding("D02", f"the loss of position 3 asks for the token at {3 + offset}", value=offset, threshold=1)


def the_same_token(more: str = "", *, status: Status = "fail") -> Finding:
    """What is asked for stands in the input."""
    witness = f"the loss of position 3 asks for token 3 itself{more}"
    return finding("D01", witness, value=0, threshold=1, status=status)


def uneven_smoothing(smoothing: Tensor, apart: float = EVEN) -> list[Finding]:
    """More is smoothed away at some positions than at others."""
    if not len(smoothing) or float(smoothing.max() - smoothing.min()) <= apart:
        return []
    least, most = float(smoothing.min()), float(smoothing.max())
    return [finding("L05", f"smoothing runs from {least:.4f} to {most:.4f}", value=most, threshold=least)]


def _no_cross_entropy(seen: Xray, ids: Tensor, logits: Tensor, pad_id: int | None) -> list[Finding]:
    slip = arithmetic(seen, ids, logits, pad_id)
    if slip is not None:
        return [slip]
    witness = f"no weight and target explain its gradient: residual {seen.residual:.1e}"
    told = partial(finding, value=seen.residual, threshold=STRAIGHT)
    for name, other in wrong_axes(ids):
        if is_like(other, seen.gradient, logits.float(), ids):
            return [told("L07", f"its gradient is that of {name}")]
    if rewards_normaliser(seen.gradient.double(), logits.double()):
        return [told("L04", "it rewards a large normaliser, which grows without end: a term with the wrong sign")]
    # a loss of another form may be meant: that it is none of the known slips is told, and no more
    if bool((seen.targets < 0).any()) or float(seen.smoothing.abs().max()) > 1e-3:
        return [told((("L05", 0.5), ("L07", 0.3), ("L04", 0.2)), witness, status="warn")]
    return [told((("L07", 0.4), ("L04", 0.3), ("L03", 0.3)), witness, status="warn")]


def _weights(seen: Xray, ids: Tensor, pad_id: int | None, ends: bool) -> list[Finding]:
    """Padding weighs nothing, and the real tokens as much as each other."""
    T, offset = ids.shape[1], seen.offset or 0
    asked = torch.full_like(ids, -1)
    asked[:, : T - offset] = ids[:, offset:]  # what each position is to predict
    padded = asked == pad_id if pad_id is not None else torch.zeros_like(ids, dtype=torch.bool)
    if ends:
        end = padded & ~F.pad(padded[:, :-1], (1, 0))  # the first of a row
        if end.any() and not seen.scored[end].any():
            witness = f"positions that are to predict token {pad_id}, which ends texts and fills up rows, have weight 0"
            return [finding("D04", witness)]
        padded = padded & ~end
    if (seen.scored & padded).any():
        return [_padding_scored(seen, padded)]
    real = ~padded
    real[:, T - offset :] = False
    found = _left_out(seen, asked, real)
    counted = real & seen.scored
    if not counted.any():
        return found
    found += mean_of_means(seen) or _sums(seen, counted, bool(padded.any()))
    return found + uneven_smoothing(seen.smoothing[counted])


def _padding_scored(seen: Xray, padded: Tensor) -> Finding:
    row, place = (int(part) for part in (seen.scored & padded).nonzero()[0])
    even = float(seen.smoothing[row, place]) > 0.5
    weight = float(seen.weights[row, place])
    witness = f"position {place} of row {row} has to predict padding, with weight {weight:.4f}"
    return finding((("L05", 0.7), ("D05", 0.3)) if even else (("D05", 0.8), ("L05", 0.2)), witness)


def _left_out(seen: Xray, asked: Tensor, real: Tensor) -> list[Finding]:
    """A token or two that nothing is learned of, wherever they stand."""
    missed = {int(id) for id in asked[real & ~seen.scored]}
    whole = {id for id in missed if not seen.scored[real & (asked == id)].any()}
    if not whole or len(whole) > 2:
        return []
    return [finding("L08", f"positions that are to predict token {min(whole)} have weight 0")]


def mean_of_means(seen: Xray) -> list[Finding]:
    """Rows of many targets weigh as much as rows of few, or places that many rows reach as much as the last ones.

    Weights that differ in another way may be meant: those of classes, of hard tokens, of answers.
    """
    weights = seen.weights[seen.scored]
    spread = float(weights.max() - weights.min()) / float(weights.abs().max()) if len(weights) else 0.0
    for axis, name in ((1, "rows"), (0, "places")):
        counts = seen.scored.sum(axis)
        sums, counts = seen.weights.sum(axis)[counts > 0], counts[counts > 0]
        even = len(sums) > 1 and float(sums.max() - sums.min()) <= EVEN * float(sums.abs().max())
        if spread > EVEN and even and len(torch.unique(counts)) > 1:
            witness = (
                f"{name} of {int(counts.min())} and of {int(counts.max())} targets weigh the same, so that tokens "
                f"weigh from {float(weights.min()):.5f} to {float(weights.max()):.5f}"
            )
            return [finding("L02", witness, value=spread, threshold=EVEN)]
    return []


def _sums(seen: Xray, counted: Tensor, has_padding: bool) -> list[Finding]:
    """Equal weights sum to one, or to what one chose; not to the number of tokens, nor to a share of the places."""
    weights = seen.weights[counted]
    total, count = float(weights.sum()), len(weights)
    if float(weights.max() - weights.min()) > EVEN * float(weights.abs().max()):
        return []
    told = partial(finding, value=total, threshold=1)
    if abs(total - count) < EVEN * count and count > 1:
        return [told("L10", f"the weights of {count} tokens sum to {total:.1f}, not 1", status="warn")]
    share = 1 - float(seen.smoothing[counted].mean())
    if total > 1 + EVEN and share < 1 - EVEN and abs(total * share - 1) < EVEN:
        witness = f"the target keeps all its weight, and the smoothing comes on top: weights sum to {total:.4f}"
        return [told((("L06", 0.9), ("L01", 0.1)), witness, status="warn")]
    divisor = count / total
    of_places = count + 0.5 < divisor < counted.numel() + 0.5 and abs(divisor - round(divisor)) < EVEN * divisor
    if has_padding and of_places:
        witness = f"the weights of {count} real tokens sum to {total:.4f}, not 1: each counts 1 / {round(divisor)}"
        return [told("L01", witness)]
    return []
