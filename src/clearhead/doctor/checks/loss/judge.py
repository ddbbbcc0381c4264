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
    reading: Xray, ids: Tensor, logits: Tensor, *, pad_id: int | None, shifts: bool | None = None, ends: bool = False
) -> list[Finding]:
    """The faults that an X-ray shows.

    Args:
        seen: the X-ray, with targets looked for among `ids`.
        pad_id: what stands in `ids` for padding.
        shifts: whether the loss itself must shift by one; None where either will do.
        ends: whether padding is the token that ends a text as well, so that the first of it is to be learned.
    """
    if reading.residual > STRAIGHT and pad_id is not None and pad_id >= 0:
        spared = read(reading.gradient.double(), logits.double(), ids, reading.value, unasked=pad_id)
        reading = spared if spared.residual <= STRAIGHT else reading
    if reading.residual > STRAIGHT:
        return _no_cross_entropy(reading, ids, logits, pad_id)
    if not reading.gradient.any():
        return [finding("I06", "no gradient of it reaches the logits: nothing can learn from it", value=0.0)]
    findings = []
    if reading.offset is not None and (reading.offset > 1 or (reading.offset < 0)):
        findings.append(too_far(reading.offset))
    elif reading.offset == 1 and shifts is False:
        witness = "the loss of position 3 asks for target 4, where targets usually are shifted already"
        findings.append(finding("D02", witness, value=1, threshold=0, status="warn"))
    elif reading.offset == 0 and shifts:
        findings.append(the_same_token())
    if reading.wraps:
        row = "the last position of row 0 asks for a token of row 1"
        findings.append(finding("D03", row))
    if not findings and reading.offset is None and are_turned(reading, ids):
        witness = "targets stand where they would if batch and time were exchanged in one of the two"
        return [finding((("D12", 0.8), ("L07", 0.2)), witness)]
    slip = None if findings else arithmetic(reading, ids, logits, pad_id)
    if slip is not None:
        return [slip]
    if not findings and are_likelihoods(reading, logits):
        return [finding("L04", "the weight of a position is the probability of its target: the logarithm is missing")]
    return findings or _weights(reading, ids, pad_id, ends)


def arithmetic(reading: Xray, ids: Tensor, logits: Tensor, pad_id: int | None = None) -> Finding | None:
    """A slip in computing a cross-entropy, known by its gradient: in a softmax, a logarithm, or the order of axes."""
    if _takes_softmax_twice(reading, ids, logits.float()):
        return finding("L03", "its gradient is that of cross_entropy(softmax(logits))", value=reading.residual)
    if reading.residual <= STRAIGHT:
        return None
    fault = partial(finding, value=reading.residual, threshold=STRAIGHT)
    touched = reading.gradient.abs() > 1e-7 * float(reading.gradient.abs().max())
    if int(touched.sum(-1).max()) <= 1:
        return fault("L04", "its gradient at a position touches one logit only, and pushes it up without end")
    if _exchanges_axes(reading.gradient, logits.float(), ids, IGNORED if pad_id is None else pad_id):
        return fault("L07", "its gradient is that of cross_entropy(logits.view(B, V, T))")
    return None


def _takes_softmax_twice(reading: Xray, ids: Tensor, logits: Tensor) -> bool:
    """Whether the loss takes the softmax of a softmax, even where all logits are nearly equal.

    There the two losses differ by little more than a factor: what counts is which of them explains the gradient.
    """
    close = STRAIGHT if reading.residual <= STRAIGHT else UNLIKE
    for targets in _targets(reading, ids):
        if not bool((targets >= 0).any()):
            continue
        labels = targets.masked_fill(targets < 0, IGNORED).flatten()

        def once(x: Tensor, labels: Tensor = labels) -> Tensor:
            return F.cross_entropy(x.flatten(0, 1), labels, ignore_index=IGNORED)

        def twice(x: Tensor, labels: Tensor = labels) -> Tensor:
            return once(x.softmax(-1), labels)

        off = misfit(twice, reading.gradient, logits)
        if off < close and off < 0.1 * misfit(once, reading.gradient, logits):
            return True
    return False


def _targets(reading: Xray, ids: Tensor) -> Iterator[Tensor]:
    """What the loss can ask for (B, T), -1 where nothing: as the X-ray has it, or if that fits badly, as ids stand."""
    yield reading.targets
    if reading.residual <= STRAIGHT:
        return
    B, T, V = reading.gradient.shape
    for offset in (1, 0, 2):
        shifted = torch.full((B, T), -1)
        shifted[:, : T - offset] = ids[:B, offset:]
        yield shifted.masked_fill((reading.targets < 0) | (shifted >= V), -1)


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


def _no_cross_entropy(reading: Xray, ids: Tensor, logits: Tensor, pad_id: int | None) -> list[Finding]:
    slip = arithmetic(reading, ids, logits, pad_id)
    if slip is not None:
        return [slip]
    witness = f"no weight and target explain its gradient: residual {reading.residual:.1e}"
    fault = partial(finding, value=reading.residual, threshold=STRAIGHT)
    for name, other in wrong_axes(ids):
        if is_like(other, reading.gradient, logits.float(), ids):
            return [fault("L07", f"its gradient is that of {name}")]
    if rewards_normaliser(reading.gradient.double(), logits.double()):
        return [fault("L04", "it rewards a large normalizer, which grows without end: a term with the wrong sign")]
    # a loss of another form may be meant: that it is none of the known slips is told, and no more
    if bool((reading.targets < 0).any()) or float(reading.smoothing.abs().max()) > 1e-3:
        return [fault((("L05", 0.5), ("L07", 0.3), ("L04", 0.2)), witness, status="warn")]
    return [fault((("L07", 0.4), ("L04", 0.3), ("L03", 0.3)), witness, status="warn")]


def _weights(reading: Xray, ids: Tensor, pad_id: int | None, ends: bool) -> list[Finding]:
    """Padding weighs nothing, and the real tokens as much as each other."""
    T, offset = ids.shape[1], reading.offset or 0
    targets = torch.full_like(ids, -1)
    targets[:, : T - offset] = ids[:, offset:]  # what each position is to predict
    padded = targets == pad_id if pad_id is not None else torch.zeros_like(ids, dtype=torch.bool)
    if ends:
        end = padded & ~F.pad(padded[:, :-1], (1, 0))  # the first of a row
        if end.any() and not reading.scored[end].any():
            witness = f"positions that are to predict token {pad_id}, which ends texts and fills up rows, have weight 0"
            return [finding("D04", witness)]
        padded = padded & ~end
    if (reading.scored & padded).any():
        return [_padding_scored(reading, padded)]
    real = ~padded
    real[:, T - offset :] = False
    findings = _left_out(reading, targets, real)
    counted = real & reading.scored
    if not counted.any():
        return findings
    findings += mean_of_means(reading) or _sums(reading, counted, bool(padded.any()))
    return findings + uneven_smoothing(reading.smoothing[counted])


def _padding_scored(reading: Xray, padded: Tensor) -> Finding:
    row, position = (int(part) for part in (reading.scored & padded).nonzero()[0])
    even = float(reading.smoothing[row, position]) > 0.5
    weight = float(reading.weights[row, position])
    witness = f"position {position} of row {row} has to predict padding, with weight {weight:.4f}"
    return finding((("L05", 0.7), ("D05", 0.3)) if even else (("D05", 0.8), ("L05", 0.2)), witness)


def _left_out(reading: Xray, targets: Tensor, real: Tensor) -> list[Finding]:
    """A token or two that nothing is learned of, wherever they stand."""
    missed = {int(id) for id in targets[real & ~reading.scored]}
    whole = {id for id in missed if not reading.scored[real & (targets == id)].any()}
    if not whole or len(whole) > 2:
        return []
    return [finding("L08", f"positions that are to predict token {min(whole)} have weight 0")]


def mean_of_means(reading: Xray) -> list[Finding]:
    """Rows of many targets weigh as much as rows of few, or places that many rows reach as much as the last ones.

    Weights that differ in another way may be meant: those of classes, of hard tokens, of answers.
    """
    weights = reading.weights[reading.scored]
    spread = float(weights.max() - weights.min()) / float(weights.abs().max()) if len(weights) else 0.0
    for axis, name in ((1, "rows"), (0, "places")):
        counts = reading.scored.sum(axis)
        sums, counts = reading.weights.sum(axis)[counts > 0], counts[counts > 0]
        even = len(sums) > 1 and float(sums.max() - sums.min()) <= EVEN * float(sums.abs().max())
        if spread > EVEN and even and len(torch.unique(counts)) > 1:
            witness = (
                f"{name} of {int(counts.min())} and of {int(counts.max())} targets weigh the same, so that tokens "
                f"weigh from {float(weights.min()):.5f} to {float(weights.max()):.5f}"
            )
            return [finding("L02", witness, value=spread, threshold=EVEN)]
    return []


def _sums(reading: Xray, counted: Tensor, has_padding: bool) -> list[Finding]:
    """Equal weights sum to one, or to what one chose; not to the number of tokens, nor to a share of the places."""
    weights = reading.weights[counted]
    total, count = float(weights.sum()), len(weights)
    if float(weights.max() - weights.min()) > EVEN * float(weights.abs().max()):
        return []
    fault = partial(finding, value=total, threshold=1)
    if abs(total - count) < EVEN * count and count > 1:
        return [fault("L10", f"the weights of {count} tokens sum to {total:.1f}, not 1", status="warn")]
    share = 1 - float(reading.smoothing[counted].mean())
    if total > 1 + EVEN and share < 1 - EVEN and abs(total * share - 1) < EVEN:
        witness = f"the target keeps all its weight, and the smoothing comes on top: weights sum to {total:.4f}"
        return [fault((("L06", 0.9), ("L01", 0.1)), witness, status="warn")]
    divisor = count / total
    of_places = count + 0.5 < divisor < counted.numel() + 0.5 and abs(divisor - round(divisor)) < EVEN * divisor
    if has_padding and of_places:
        witness = f"the weights of {count} real tokens sum to {total:.4f}, not 1: each counts 1 / {round(divisor)}"
        return [fault("L01", witness)]
    return []
