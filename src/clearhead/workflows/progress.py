"""Where people who call a training from Python see it: on a terminal or in a notebook; a log gets its two ends."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from clearhead.pages import one_line, printable
from clearhead.wording import counted
from clearhead.workflows.events import Finished, Observer, Started, WorkflowEvent, ignore
from clearhead.workflows.narration import Narrator, Screen

PAUSE = 0.1  # seconds between two rewritings of the line


@contextmanager
def showing(progress: bool | None, on_event: Observer | None) -> Iterator[Observer]:
    """The observer of a training: `on_event`, and what a person sees.

    Args:
        progress: whether to show how it goes; None: on a terminal and in a notebook, and elsewhere the first and the
            last line of it; nothing where there is an observer already.
        on_event: is told everything as well.
    """
    stream = sys.stdout if _in_notebook() else sys.stderr  # a notebook prints standard error as if it were a fault
    rewrites = _in_notebook() or (stream is not None and stream.isatty())
    if progress is False or stream is None or (progress is None and on_event is not None):
        yield on_event or ignore
        return
    screen = StreamScreen(stream, rewrites=rewrites)
    narrator = Narrator(screen) if progress or rewrites else FirstAndLast(screen)

    def both(event: WorkflowEvent) -> None:
        narrator.tell(event)
        if on_event is not None:
            on_event(event)

    try:
        yield both
    finally:
        screen.end()


class FirstAndLast:
    """Tells a log, which somebody reads hours later, that a training began, and where it ended."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def tell(self, event: WorkflowEvent) -> None:
        """Show the event, if it is one of the two."""
        match event:
            case Started(step=0):
                self._line(
                    f"training {counted(event.steps, 'step')} in {event.folder}; `progress=True` shows how it goes"
                )
            case Started():
                self._line(f"continuing after step {event.step:,} of {event.steps:,} in {event.folder}")
            case Finished():
                self._line(f"{event.verdict} The run is in {event.folder}.")

    def _line(self, text: str) -> None:
        self.screen.line((text, ""))


class StreamScreen:
    """A screen without color: lines, and below them one that is rewritten with every step, where that is possible."""

    def __init__(self, stream: TextIO, *, rewrites: bool) -> None:
        self.stream, self.rewrites, self.has_bar = stream, rewrites, rewrites
        self.width, self.encoding = shutil.get_terminal_size().columns, getattr(stream, "encoding", None) or "utf-8"
        self.covered = 0  # columns of the line that is being rewritten
        self.first, self.steps = 0, 1
        self.start_time = self.written = -PAUSE

    def line(self, *pieces: tuple[str, str]) -> None:
        """A line that stays."""
        self._write(one_line("".join(text for text, _ in pieces)) + "\n")

    def block(self, text: str, style: str = "") -> None:
        """A text of several lines."""
        self._write(printable(text) + "\n")

    def passing(self, text: str) -> None:
        """A line that the next one replaces, where lines can be rewritten."""
        self._rewrite(one_line(text)) if self.rewrites else self._write(one_line(text) + "\n")

    def begin(self, step: int, steps: int) -> None:
        """A training begins after `step` of `steps` steps."""
        self.first, self.steps, self.start_time = step, steps, time.monotonic()

    def advance(self, step: int, news: str) -> None:
        """Rewrite the line, not more often than a person can read it."""
        now = time.monotonic()
        if not self.has_bar or now - self.written < PAUSE:
            return
        self.written = now
        left = (now - self.start_time) / max(1, step - self.first) * (self.steps - step)
        self._rewrite(f"step {step:>6,}/{self.steps:,}  {news}  {_clock(left)} left")

    def _rewrite(self, text: str) -> None:
        text = text[: self.width - 1]  # a line that wraps cannot be rewritten
        self._send("\r" + text.ljust(self.covered))
        self.covered = len(text)

    def set_steps(self, steps: int) -> None:
        """There will be this many steps."""
        self.steps = steps

    def end(self) -> None:
        """Nothing more is rewritten: what is printed next begins a line of its own."""
        if self.covered:
            self._write("")

    def _write(self, text: str) -> None:
        """Text in the place of the line that is being rewritten."""
        self._send(("\r" + " " * self.covered + "\r" if self.covered else "") + text)
        self.covered = 0

    def _send(self, text: str) -> None:
        try:
            self.stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
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
