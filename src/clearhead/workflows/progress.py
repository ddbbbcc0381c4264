"""How a training goes, for people who call it from Python: lines, and below them one that is rewritten."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from clearhead.pages import one_line, printable
from clearhead.training import Evaluated, Stepped
from clearhead.workflows.events import (
    Averaged,
    Finished,
    Notice,
    Observer,
    Passed,
    Replanned,
    Sampled,
    Started,
    WorkflowEvent,
    ignore,
)

PAUSE = 0.1  # seconds between two rewritings of the line
LINES = 20  # of progress in a whole training, where a line cannot be rewritten
SAMPLE_CHARACTERS = 240


@contextmanager
def showing(progress: bool | None, observe: Observer | None) -> Iterator[Observer]:
    """The observer of a training: `observe`, and what a person sees.

    Args:
        progress: whether to show anything; None: on a terminal and in a notebook, unless there is an observer already.
        observe: is told everything as well.
    """
    stream = sys.stdout if _in_notebook() else sys.stderr  # a notebook prints standard error as if it were a fault
    rewrites = _in_notebook() or (stream is not None and stream.isatty())
    if progress is None:
        progress = rewrites and observe is None
    if not progress or stream is None:
        yield observe or ignore
        return
    shown = Progress(stream, rewrites=rewrites)

    def both(event: WorkflowEvent) -> None:
        shown.take(event)
        if observe is not None:
            observe(event)

    try:
        yield both
    finally:
        shown.end()


class Progress:
    """Prints the events of a training to a stream."""

    def __init__(self, stream: TextIO, *, rewrites: bool) -> None:
        self.stream, self.rewrites = stream, rewrites
        self.width = 0  # of the line that is being rewritten
        self.first, self.steps = 0, 1
        self.tokens, self.seconds = 0, 0.0
        self.began = self.written = -PAUSE

    def take(self, event: WorkflowEvent) -> None:
        """Print one event."""
        match event:
            case Notice() | Passed():
                self.line(event.text)
            case Started():
                self.first, self.steps, self.began = event.step, event.steps, time.monotonic()
            case Replanned():
                self.steps = event.steps
            case Stepped():
                self._step(event)
            case Evaluated():
                best = "  best so far" if event.best else ""
                self.line(f"step {event.step:>6,}/{self.steps:,}  validation loss {event.loss:.4f}{best}")
            case Averaged():
                kept = "it is the run's model" if event.used else "a single one's is lower"
                self.line(f"the mean of the last {event.checkpoints} checkpoints: {event.loss:.4f}; {kept}")
            case Sampled():
                if event.step == self.steps:
                    self._write(f"\n{printable(event.text[:SAMPLE_CHARACTERS].strip())}\n\n")
            case Finished():
                self.line(event.verdict)
                self.line(f"The run is in {event.folder}.")

    def line(self, text: str) -> None:
        """A line that stays."""
        self._write(one_line(text) + "\n")

    def end(self) -> None:
        """Nothing more comes: what is printed next begins a line of its own."""
        if self.width:
            self._write("")

    def _step(self, event: Stepped) -> None:
        self.tokens, self.seconds = self.tokens + event.tokens, self.seconds + event.seconds
        now = time.monotonic()
        is_due = now - self.written >= PAUSE if self.rewrites else event.step % max(1, self.steps // LINES) == 0
        if not is_due:
            return
        self.written = now
        left = (now - self.began) / max(1, event.step - self.first) * (self.steps - event.step)
        speed = f"{self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"
        text = f"step {event.step:>6,}/{self.steps:,}  loss {event.loss:.4f}  {speed}  {_clock(left)} left"
        if not self.rewrites:
            self.line(text)
            return
        text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps cannot be rewritten
        self._send("\r" + text.ljust(self.width))
        self.width = len(text)

    def _write(self, text: str) -> None:
        """Text in the place of the line that is being rewritten."""
        self._send(("\r" + " " * self.width + "\r" if self.width else "") + text)
        self.width = 0

    def _send(self, text: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        try:
            self.stream.write(text.encode(encoding, "replace").decode(encoding))
            self.stream.flush()
        except (OSError, ValueError):  # nobody reads any more, which is no reason to end a training
            pass


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _in_notebook() -> bool:
    """Whether a notebook runs this: IPython, with a kernel in place of a terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
