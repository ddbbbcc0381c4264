"""What a loss asks for, compared with what it should ask for: the loss of a function, a model or a training."""

from collections.abc import Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.doctor.checks.base import Finding, Status, finding
from clearhead.doctor.checks.loss.slips import are_turned, slip_in
from clearhead.doctor.probes.loss import STRAIGHT, Xray, ahead, read
from clearhead.doctor.probes.tensors import first_true

EVEN = 1e-3  # relative difference of weights that are meant to be equal


def judge(
    reading: Xray, logits: Tensor, *, pad_id: int | None, shifts: bool | None = None, ends: bool = False
) -> list[Finding]:
    """The faults that an X-ray shows.

    Args:
        reading: the X-ray, with targets looked up among its ids.
        pad_id: the token that stands for padding there.
        shifts: whether the loss itself must shift by one; None if either will do.
        ends: whether padding is also the token that ends a text, so that its first occurrence must be learned.
    """
    if reading.residual > STRAIGHT and pad_id is not None and pad_id >= 0:
        spared = read(reading.gradient.double(), logits.double(), reading.ids, reading.value, unasked=pad_id)
        reading = spared if spared.residual <= STRAIGHT else reading
    if reading.residual > STRAIGHT:
        return arithmetic(reading, logits, pad_id) or [_other_form(reading)]
    if not reading.gradient.any():
        return [finding("I06", "its gradient does not reach the logits: nothing can learn from it", value=0.0)]
    findings = []
    if reading.offset is not None and not 0 <= reading.offset <= 1:
        findings.append(too_far(reading.offset))
    elif reading.offset == 1 and shifts is False:
        witness = "the loss of position 3 asks for target 4, but targets usually are shifted already"
        findings.append(finding("D02", witness, value=1, threshold=0, status="warn"))
    elif reading.offset == 0 and shifts:
        findings.append(the_same_token())
    if reading.wraps:
        findings.append(finding("D03", "the last position of row 0 asks for a token of row 1"))
    if findings:
        return findings
    if reading.offset is None and are_turned(reading):
        witness = "targets are where they would be if batch and time were exchanged in logits or targets"
        return [finding((("D12", 0.8), ("L07", 0.2)), witness)]
    return arithmetic(reading, logits, pad_id) or _weights(reading, pad_id, ends)


def arithmetic(reading: Xray, logits: Tensor, pad_id: int | None = None) -> list[Finding]:
    """A wrong softmax, logarithm or order of axes in a cross-entropy, known by its gradient."""
    slip = slip_in(reading, logits, pad_id)
    return [] if slip is None else [finding(slip.id, slip.witness, value=reading.residual, threshold=STRAIGHT)]


def too_far(offset: int) -> Finding:
    """The loss asks for neither the token at the position nor the next."""
    back = ", which comes before it: the shift goes the wrong way" if offset < 0 else ""
    witness = f"the loss of position 3 asks for the token at {3 + offset}{back}"
    return finding("D02", witness, value=offset, threshold=1)


def the_same_token(more: str = "", *, status: Status = "fail") -> Finding:
    """The loss asks for what is in the input."""
    witness = f"the loss of position 3 asks for token 3 itself{more}"
    return finding("D01", witness, value=0, threshold=1, status=status)


def uneven_smoothing(smoothing: Tensor, apart: float = EVEN) -> list[Finding]:
    """Some positions are smoothed more than others."""
    if not len(smoothing) or float(smoothing.max() - smoothing.min()) <= apart:
        return []
    least, most = float(smoothing.min()), float(smoothing.max())
    return [finding("L05", f"smoothing runs from {least:.4f} to {most:.4f}", value=most, threshold=least)]


def _other_form(reading: Xray) -> Finding:
    """Another form of loss may be intended: this only says that it is none of the known mistakes."""
    is_smoothed = bool((reading.targets < 0).any()) or float(reading.smoothing.abs().max()) > 1e-3
    smoothed, plain = (("L05", 0.5), ("L07", 0.3), ("L04", 0.2)), (("L07", 0.4), ("L04", 0.3), ("L03", 0.3))
    witness = f"no weight and target explain its gradient: residual {reading.residual:.1e}"
    causes = smoothed if is_smoothed else plain
    return finding(causes, witness, value=reading.residual, threshold=STRAIGHT, status="warn")


def _weights(reading: Xray, pad_id: int | None, ends: bool) -> list[Finding]:
    """Padding has weight 0, and all real tokens have the same weight."""
    targets = ahead(reading.ids, reading.offset or 0)  # what each position is to predict
    padded = targets == pad_id if pad_id is not None else torch.zeros_like(targets, dtype=torch.bool)
    if ends:
        end = padded & ~F.pad(padded[:, :-1], (1, 0))  # the first of a row
        if end.any() and not reading.scored[end].any():
            witness = f"positions whose target is token {pad_id}, both padding and end of text, have weight 0"
            return [finding("D04", witness)]
        padded = padded & ~end
    if (reading.scored & padded).any():
        row, position = first_true(reading.scored & padded)
        causes = (
            (("L05", 0.7), ("D05", 0.3)) if reading.smoothing[row, position] > 0.5 else (("D05", 0.8), ("L05", 0.2))
        )
        weight = float(reading.weights[row, position])
        return [finding(causes, f"position {position} of row {row} has to predict padding, with weight {weight:.4f}")]
    real = (targets >= 0) & ~padded
    findings = _left_out(reading, targets, real, knows_padding=pad_id is not None and pad_id >= 0)
    counted = real & reading.scored
    if not counted.any():
        return findings
    findings += mean_of_means(reading) or _sums(reading, counted, bool(padded.any()))
    return findings + uneven_smoothing(reading.smoothing[counted])


def _left_out(reading: Xray, targets: Tensor, real: Tensor, *, knows_padding: bool) -> list[Finding]:
    """A token or two that are never learned, wherever they stand."""
    missed = {int(id) for id in targets[real & ~reading.scored]}
    whole = {id for id in missed if not reading.scored[real & (targets == id)].any()}
    if not whole or len(whole) > 2:
        return []
    return [never_scored(min(whole), is_padding=None if len(whole) == 1 and not knows_padding else False)]


def never_scored(token: int, more: str = "", *, is_padding: bool | None) -> Finding:
    """A token that is never learned. `is_padding`: None where it may be padding, which is left out on purpose."""
    witness = f"positions whose target is token {token} have weight 0{more}"
    if is_padding is None:
        return finding("L08", f"{witness}; that is right only if it is the padding token", value=0.0, status="warn")
    return finding("L08", witness, value=0.0)


def mean_of_means(reading: Xray) -> list[Finding]:
    """Rows with many targets weigh as much as rows with few, or positions in many rows as much as those in few.

    Weights that differ in another way may be intended: of classes, of hard tokens, of answers.
    """
    weights = reading.weights[reading.scored]
    spread = float(weights.max() - weights.min()) / float(weights.abs().max()) if len(weights) else 0.0
    for axis, name in ((1, "rows"), (0, "positions")):
        counts = reading.scored.sum(axis)
        sums, counts = reading.weights.sum(axis)[counts > 0], counts[counts > 0]
        even = len(sums) > 1 and float(sums.max() - sums.min()) <= EVEN * float(sums.abs().max())
        if spread > EVEN and even and len(torch.unique(counts)) > 1:
            witness = (
                f"{name} with {int(counts.min())} and with {int(counts.max())} targets have the same weight, so tokens "
                f"have weights from {float(weights.min()):.5f} to {float(weights.max()):.5f}"
            )
            return [finding("L02", witness, value=spread, threshold=EVEN)]
    return []


def _sums(reading: Xray, counted: Tensor, has_padding: bool) -> list[Finding]:
    """Equal weights sum to one, or to a chosen number; not to the number of tokens, nor to their share of positions."""
    weights = reading.weights[counted]
    total, count = float(weights.sum()), len(weights)
    if float(weights.max() - weights.min()) > EVEN * float(weights.abs().max()):
        return []
    share = 1 - float(reading.smoothing[counted].mean())
    if total > 1 + EVEN and share < 1 - EVEN and abs(total * share - 1) < EVEN:
        witness = f"the smoothed mass is added to the target's full weight: weights sum to {total:.4f}"
        return [finding((("L06", 0.9), ("L01", 0.1)), witness, value=total, threshold=1, status="warn")]
    return of_total(total, count, range(count + 1, counted.numel() + 1) if has_padding else ())


def of_total(total: float, count: int, divisors: Iterable[int]) -> list[Finding]:
    """What the weights of so many tokens sum to. `divisors`: numbers of positions that it is wrong to divide by."""
    fault = partial(finding, value=total, threshold=1)
    if abs(total - count) < EVEN * count and count > 1:
        witness = f"the weights of {count} tokens sum to {total:.1f}, not 1: each counts as a whole batch should"
        return [fault("L10", witness, status="warn")]
    divisor = next((number for number in divisors if abs(total * number - count) < EVEN * count < number - count), None)
    if divisor is not None:
        witness = f"the weights of {count} tokens sum to {total:.4f}, not 1: each is 1 / {divisor}"
        return [fault("L01", witness)]
    return []
