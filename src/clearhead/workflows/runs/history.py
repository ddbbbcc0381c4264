"""What metrics.jsonl tells of a training: read once, in memory that does not grow with the training's length.

Which lines are records, and that their values are of the right type, is judged in `records.py`, and only there.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Self, TypeVar

from clearhead.data import GrammarScore
from clearhead.inspection import Curve, Point, Sample

T = TypeVar("T")
Row = dict[str, float | None]

MAX_POINTS = 4096  # per line of the curve
MAX_SAMPLES = 64
MAX_CHARACTERS = 20_000  # per sample
SHORTEST = 1e-9  # seconds of a step that was measured
RECENT = 50  # the final training loss is the mean over this many steps


class Thinned(Generic[T]):
    """Keeps at most `most` (an even number) evenly spaced items, and always the last."""

    def __init__(self, most: int) -> None:
        self.most, self.every, self.count = most, 1, 0
        self.kept: list[T] = []
        self.rest: list[T] = []  # the last item, where it is not kept

    def append(self, item: T) -> None:
        """The next item of the row."""
        self.rest = [item]
        if self.count % self.every == 0:
            if len(self.kept) == self.most:
                self.kept, self.every = self.kept[::2], 2 * self.every
            self.kept.append(item)
            self.rest = []
        self.count += 1

    def __iter__(self) -> Iterator[T]:
        return iter([*self.kept, *self.rest])


class Means:
    """A line of points: each one of a short line; of a longer one, means of equally many points in a row."""

    def __init__(self, most: int) -> None:
        self.most, self.every = most, 1
        self.points: list[Point] = []
        self.sum, self.count, self.step = 0.0, 0, 0.0  # of the mean that is not complete yet

    def append(self, step: float, loss: float) -> None:
        """The next point."""
        self.sum, self.count, self.step = self.sum + loss, self.count + 1, step
        if self.count < self.every:
            return
        self.points += self._rest()
        self.sum, self.count = 0.0, 0
        if len(self.points) == 2 * self.most:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(step, (loss + next_loss) / 2) for (_, loss), (step, next_loss) in pairs]
            self.every *= 2

    def __iter__(self) -> Iterator[Point]:
        return iter([*self.points, *self._rest()])

    def _rest(self) -> list[Point]:
        return [(self.step, self.sum / self.count)] if self.count else []


@dataclass
class History:
    """The figures, losses and samples of one training. `History.of(run.records())` reads them.

    Args:
        steps: how many steps are recorded.
        last_step: the highest number of a step.
        seconds: time in steps.
        tokens: tokens counted in the loss.
        first_loss: of the first recorded step; None where it was not finite.
        recent: the finite losses of the last steps.
        best: the step and the loss of the best evaluation.
        val_loss: the last finite validation loss; that of a mean of checkpoints where it is the run's model.
        best_val_loss: the lowest of them.
        bits_per_byte: the same in bits per byte, where the loss is that of a whole text.
        has_mean: whether the mean of the last checkpoints was tried.
        origin: where the trained model came from that this training began with, if it did.
        scores: figures of the last sample, by name.
        grammar: what the corpus's grammar says of the run's model, if it has been asked.
        evaluations: (seconds in steps until then, validation loss).
        peak_memory: the most bytes that the first process held, as far as is recorded.
    """

    steps: int = 0
    last_step: int = 0
    seconds: float = 0.0
    tokens: float = 0.0
    first_loss: float | None = None
    recent: deque[float | None] = field(default_factory=lambda: deque(maxlen=RECENT))
    best: Point | None = None
    val_loss: float | None = None
    best_val_loss: float | None = None
    bits_per_byte: float | None = None
    has_mean: bool = False
    origin: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    grammar: GrammarScore | None = None
    train: Means = field(default_factory=lambda: Means(MAX_POINTS))
    validation: Thinned[Point] = field(default_factory=lambda: Thinned(MAX_POINTS))
    peak_memory: int | None = None
    evaluations: Thinned[Point] = field(default_factory=lambda: Thinned(MAX_POINTS))
    gradient_norms: Means = field(default_factory=lambda: Means(MAX_POINTS))
    learning_rates: Means = field(default_factory=lambda: Means(MAX_POINTS))
    speeds: Means = field(default_factory=lambda: Means(MAX_POINTS))  # tokens per second
    mfu: Means = field(default_factory=lambda: Means(MAX_POINTS))  # model FLOPs utilization, in percent
    samples: Thinned[Sample] = field(default_factory=lambda: Thinned(MAX_SAMPLES))

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Self:
        """What the records tell. `record_of` has checked their values by kind, which no type of a mapping can say."""
        history = cls()
        for record in records:
            history.take(record)
        return history

    @property
    def train_loss(self) -> float | None:
        """The mean loss over the last steps."""
        finite = [loss for loss in self.recent if loss is not None]
        return sum(finite) / len(finite) if finite else None

    def curve(self, floor: float | None, bytes_per_token: float | None = None) -> Curve:
        """The losses to draw, the best evaluation among them; `floor` is the lowest that is possible, if known."""
        best = set() if self.best is None else {self.best}
        return Curve(tuple(self.train), tuple(sorted({*self.validation} | best)), floor, bytes_per_token)

    def take(self, record: Mapping[str, Any]) -> None:
        """One more record, as `record_of` gave it."""
        step = record["step"]
        loss = record.get("loss")
        match record.get("kind"):
            case "step":
                self._stepped(record, step, loss)
            case "evaluation" if loss is not None:
                self.validation.append((step, loss))
                self.evaluations.append((self.seconds, loss))
                if self.best is None or loss < self.best[1]:
                    self.best = (step, loss)
                self._measured(loss, record.get("bits_per_byte"))
            case "mean":
                self.has_mean = True
                if loss is not None and record["used"]:
                    self._measured(loss, record.get("bits_per_byte"))
            case "sample":
                self.samples.append(Sample(step, record["text"][:MAX_CHARACTERS]))
                self.scores = record.get("scores", {})
            case "grammar":
                self.grammar = GrammarScore(**{field.name: record[field.name] for field in fields(GrammarScore)})
            case "origin" if self.origin is None:
                self.origin = record["from"]

    def _stepped(self, record: Mapping[str, Any], step: int, loss: float | None) -> None:
        if self.steps == 0:
            self.first_loss = loss
        self.steps += 1
        self.grammar = None  # said of a model before this step
        self.last_step = max(self.last_step, step)
        self.seconds += record["seconds"]
        self.tokens += record["tokens"]
        self.recent.append(loss)
        speed = record["tokens"] / record["seconds"] if record["seconds"] > SHORTEST else None
        if (memory := record.get("peak_memory")) is not None:
            self.peak_memory = max(self.peak_memory or 0, memory)
        if (mfu := record.get("mfu")) is not None:
            self.mfu.append(step, 100 * mfu)
        rest = ((self.gradient_norms, record.get("gradient_norm")), (self.learning_rates, record.get("learning_rate")))
        for line, value in ((self.train, loss), (self.speeds, speed), *rest):
            if value is not None:
                line.append(step, value)

    def _measured(self, loss: float, bits: float | None) -> None:
        self.val_loss = loss
        if self.best_val_loss is None or loss < self.best_val_loss:
            self.best_val_loss, self.bits_per_byte = loss, bits


def rows(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row per step, with the validation loss where there is one."""
    table: dict[int, Row] = {}
    for record in records:
        step = record["step"]
        if record["kind"] == "step":
            losses = {"train_loss": record["loss"], "val_loss": None}
            rest = ("learning_rate", "gradient_norm", "tokens", "seconds")
            table[step] = {"step": step, **losses, **{name: record.get(name) for name in rest}}
        elif record["kind"] == "evaluation" and step in table:
            table[step]["val_loss"] = record["loss"]
    return list(table.values())
