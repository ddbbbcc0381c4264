"""A training in words: the same lines for the command, for Python and for a notebook."""

import time
from typing import Protocol, assert_never

from clearhead.inspection import draw, in_bits
from clearhead.training import Evaluated, Notice, Stepped
from clearhead.wording import counted, whole_words
from clearhead.workflows.events import (
    CheckPassed,
    Finished,
    Preparing,
    Read,
    Replanned,
    Sampled,
    Started,
    WeightsAveraged,
    WorkflowEvent,
)
from clearhead.workflows.utilization import Utilization

SILENCE = 5.0  # seconds without a word that a person can stand
LINES = 20  # about steps, in a whole training, where no bar is moved
SAMPLE_CHARACTERS = 240
NEWS = 0.2  # share of the steps by which a plan must have changed since it was last told
NAMES = {"bleu": "BLEU (greedy)"}  # of figures, as a person reads them


class Screen(Protocol):
    """Where a training is shown. A style is one of rich's; a screen without color leaves it out."""

    width: int
    encoding: str

    @property
    def rewrites(self) -> bool:
        """Whether a line can be replaced."""

    @property
    def has_bar(self) -> bool:
        """Whether something moves with every step, so that no lines about single steps are needed."""

    def line(self, *pieces: tuple[str, str]) -> None:
        """One line of texts, each with its style."""

    def block(self, text: str, style: str = "") -> None:
        """A text of several lines."""

    def passing(self, text: str) -> None:
        """A line that the next one replaces, where that is possible."""

    def begin(self, step: int, steps: int) -> None:
        """A training begins after `step` of `steps` steps."""

    def advance(self, step: int, news: str) -> None:
        """A step is done; `news` is what the bar says of it."""

    def set_steps(self, steps: int) -> None:
        """There will be this many steps, fewer or more than at first."""

    def end(self) -> None:
        """The training is over, or was stopped."""


class Narrator:
    """Tells a screen what happens, event by event."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.steps = self.told_steps = 0
        self.bytes_per_token: float | None = None
        self.utilization: Utilization | None = None
        self.steps_timed = 0
        self.tokens, self.seconds, self.is_first = 0, 0.0, True
        self.spoke_at = time.monotonic()

    def tell(self, event: WorkflowEvent) -> None:
        """Show one event."""
        match event:
            case Notice():
                self._notice(event.text)
            case CheckPassed():
                self._line(event.text, "green")
            case Preparing():
                self._preparing(event)
            case Started():
                self._started(event)
            case Replanned():
                self._replanned(event)
            case Stepped():
                self._stepped(event)
            case Evaluated():
                self._evaluated(event)
            case Sampled():
                self._sampled(event)
            case WeightsAveraged():
                self._averaged(event)
            case Read():
                self._line(event.score.line())
            case Finished():
                self._finished(event)
            case _:
                assert_never(event)

    def _notice(self, text: str) -> None:
        head, colon, rest = text.partition(": ")
        self.screen.line(*([(head + colon, "bold"), (rest, "")] if colon and " " not in head else [(text, "")]))

    def _preparing(self, event: Preparing) -> None:
        """At once where the next line replaces it; elsewhere after a silence."""
        if self.screen.rewrites or time.monotonic() - self.spoke_at > SILENCE:
            self.screen.passing(f"preparing the data: {event.share:.0%}")
            self.spoke_at = time.monotonic()

    def _started(self, event: Started) -> None:
        self.steps = self.told_steps = event.steps
        self.bytes_per_token, self.utilization = event.bytes_per_token, event.utilization
        if event.step:
            self._line(f"continuing after step {event.step:,} of {event.steps:,} in {event.folder}")
        self.screen.begin(event.step, event.steps)

    def _replanned(self, event: Replanned) -> None:
        self.steps = event.steps
        if abs(event.steps - self.told_steps) > NEWS * self.told_steps:
            pace = "slower" if event.steps < self.told_steps else "faster"
            self._line(
                f"the machine is {pace} than measured: {event.steps:,} steps fit into the time, not {self.told_steps:,}"
            )
            self.told_steps = event.steps
        self.screen.set_steps(event.steps)

    def _stepped(self, event: Stepped) -> None:
        self.tokens, self.seconds = self.tokens + event.tokens, self.seconds + event.seconds
        self.steps_timed += 1
        news = f"loss {event.loss:.4f}  {self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"
        if self.utilization is not None:
            news += self.utilization.news(self.tokens, self.seconds, self.steps_timed)
        self.screen.advance(event.step, news)
        if self.is_first or (not self.screen.has_bar and event.step % max(1, self.steps // LINES) == 0):
            rate = f"rate {event.learning_rate:.2e}  gradient {event.gradient_norm:.2f}"
            self._line(f"{self._at(event.step)}  {news}  {rate}")
        if event.skipped:
            self._line(f"step {event.step:,} was skipped: its loss or gradient was not finite", "yellow")
        self.is_first = False

    def _evaluated(self, event: Evaluated) -> None:
        best = "  best so far" if event.best else ""
        bits = in_bits(event.loss, self.bytes_per_token)
        loss = f"validation {event.loss:.4f}{bits and ','}{bits}"
        self._line(
            f"{self._at(event.step)}  {loss} over {event.tokens:,} tokens{best}",
            "bold green" if event.best else "bold",
        )

    def _sampled(self, event: Sampled) -> None:
        for name, value in event.scores.items():
            self._line(f"{self._at(event.step)}  validation {NAMES.get(name, name)} {value:.1f}", "bold")
        if self.screen.has_bar or event.step in (0, self.steps):
            sample = whole_words(event.text[:SAMPLE_CHARACTERS]).strip()
            self.screen.block(f"\n{sample}\n", "dim" if event.step < self.steps else "")

    def _averaged(self, event: WeightsAveraged) -> None:
        verdict = "it is the run's model" if event.used else "the best single checkpoint is better and is kept"
        averaged = counted(event.checkpoints, "checkpoint")
        self._line(f"the mean of the last {averaged} has validation loss {event.loss:.4f}: {verdict}")

    def _finished(self, event: Finished) -> None:
        self.screen.end()
        self.screen.block(draw(event.curve, width=min(self.screen.width, 100), encoding=self.screen.encoding))
        self._line(event.verdict, "bold")
        self._line("")
        self._line(f"The run is in {event.folder}; open its report.html for curves and samples.")

    def _at(self, step: int) -> str:
        return f"step {step:>6,}/{self.steps:,}"

    def _line(self, text: str, style: str = "") -> None:
        self.screen.line((text, style))
