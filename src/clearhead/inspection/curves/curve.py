"""A training curve as data: the points, a smoothed line through them, round ticks for its axes, and what it says."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")
Point = tuple[float, float]  # (step, loss in nats per token)
# Round numbers within a power of ten for a logarithmic axis, from many to few.
MANTISSAS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5, 7), (1, 2, 5))


@dataclass(frozen=True)
class Curve:
    """The losses of one run; a point that is not finite is left out.

    Args:
        train: the loss of each step's batch, before that step.
        validation: the loss on held-out text at some steps.
        floor: the lowest loss possible, where the corpus knows it exactly.
        bytes_per_token: what turns nats per token into bits per byte, where the loss is that of a whole text.
    """

    train: tuple[Point, ...] = ()
    validation: tuple[Point, ...] = ()
    floor: float | None = None
    bytes_per_token: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", _finite(self.train))
        object.__setattr__(self, "validation", _finite(self.validation))

    @property
    def floor_label(self) -> str:
        """The floor in words; there is one."""
        assert self.floor is not None
        bits = in_bits(self.floor, self.bytes_per_token)
        return f"floor {self.floor:.3f}{bits and ','}{bits} (exact)"

    @property
    def last_step(self) -> float:
        """Where the curve ends; at least 1, so that the axis has a length."""
        return max([1.0, *(step for step, _ in self.train + self.validation)])

    @property
    def losses(self) -> tuple[float, float]:
        """The lowest and the highest value to be drawn, never equal."""
        values = [loss for _, loss in smooth(self.train) + self.validation]
        values += [] if self.floor is None else [self.floor]
        low, high = min(values, default=0.0), max(values, default=1.0)
        return (low, high) if low < high else (low - 0.5, high + 0.5)


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """Nats per token in bits per byte of UTF-8, which compares models over tokenizers."""
    return loss / (bytes_per_token * math.log(2))


def in_bits(loss: float, bytes_per_token: float | None) -> str:
    """The same for a sentence, after a blank; nothing where a token has no bytes."""
    return "" if bytes_per_token is None else f" {bits_per_byte(loss, bytes_per_token):.3f} bits per byte"


def _finite(points: Iterable[Point]) -> tuple[Point, ...]:
    return tuple((step, loss) for step, loss in points if math.isfinite(step) and math.isfinite(loss))


def smooth(points: tuple[Point, ...], share: float = 0.02) -> tuple[Point, ...]:
    """A centered running mean over `share` of the points.

    The window narrows at both ends, so that nothing lags, but never to a single point at the end, which is noisy.
    """
    reach = int(len(points) * share / 2)
    sums = [0.0, *accumulate(loss for _, loss in points)]
    smoothed = []
    for i, (step, loss) in enumerate(points):
        after = min(reach, i, len(points) - 1 - i)
        before = max(after, min(reach // 2, i))
        mean = (sums[i + after + 1] - sums[i - before]) / (before + 1 + after) if before else loss
        smoothed.append((step, mean))
    return tuple(smoothed)


def thin(items: tuple[T, ...], most: int) -> tuple[T, ...]:
    """At most `most` of the items, evenly taken, the first and the last among them."""
    if len(items) <= most:
        return items
    return tuple(items[round(i * (len(items) - 1) / (most - 1))] for i in range(most))


def ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """About `about` round numbers (1, 2 or 5 times a power of ten apart) from `low` to `high`; if `whole`, integers."""
    assert low < high
    assert about >= 1
    raw = max((high - low) / about, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Axis:
    """Maps a value to a share of the picture's height. On a logarithmic axis, small differences at the end show.

    Args:
        low, high: the least and the greatest value.
        name: what is measured, in which unit.
        below, above: shares of the height that stay free.
    """

    def __init__(
        self, low: float, high: float, name: str, *, logarithmic: bool, below: float = 0.0, above: float = 0.0
    ) -> None:
        self.logarithmic = logarithmic and low > 0
        self.name = name + (", log scale" if self.logarithmic else "")
        low, high = (low, high) if low < high else (low - 0.5 * abs(low or 1), high + 0.5 * abs(high or 1))
        low, high = self._scaled(low), self._scaled(high)
        self.low, self.high = low - below * (high - low), high + above * (high - low)

    def __call__(self, value: float) -> float:
        """The height as a share of the axis; what lies beyond its ends is drawn at them."""
        return min(max((self._scaled(value) - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self, about: int) -> list[float]:
        """At most about `about` round values."""
        if not self.logarithmic:
            return ticks(self.low, self.high, about)
        low, high = math.exp(self.low), math.exp(self.high)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for mantissas in MANTISSAS:
            marks = [m * 10.0**power for power in powers for m in mantissas if low <= m * 10.0**power <= high]
            if 3 <= len(marks) <= about:
                return marks
        return ticks(low, high, about)

    def _scaled(self, value: float) -> float:
        return math.log(max(value, 1e-9)) if self.logarithmic else value


class LossAxis(Axis):
    """For the losses of a curve: logarithmic unless they come near zero."""

    def __init__(self, curve: Curve, below: float = 0.0, above: float = 0.0) -> None:
        low, high = curve.losses
        super().__init__(low, high, "loss in nats per token", logarithmic=low > 0.1, below=below, above=above)


def verdict(curve: Curve, vocab_size: int) -> str:
    """One sentence on how good the end of the curve is: against its floor where there is one, else against no model."""
    held_out = [loss for _, loss in curve.validation]
    start = math.log(vocab_size)
    if not held_out:
        return f"A model that knows nothing has a loss of ln {vocab_size} = {start:.3f} nats per token."
    best = min(held_out)

    def parenthesis(loss: float) -> str:
        bits = in_bits(loss, curve.bytes_per_token)
        return bits and f" ({bits.strip()})"

    if curve.floor is not None:
        gap = best - curve.floor
        how_far = f"{gap:.3f} nats per token above what is possible"
        if gap < 0:  # the held-out text is one sample; by chance it may be easier than the corpus is on average
            how_far = (
                f"{-gap:.3f} nats per token below the corpus's entropy (the held-out sample is easier than average)"
            )
        entropy = f"the text's own entropy {curve.floor:.3f}{parenthesis(curve.floor)}"
        return f"{how_far}: the best validation loss is {best:.3f}{parenthesis(best)}, {entropy}."
    return (
        f"The fresh model started at ln {vocab_size} = {start:.3f} nats per token; "
        f"the best validation loss is {best:.3f}{parenthesis(best)}."
    )
