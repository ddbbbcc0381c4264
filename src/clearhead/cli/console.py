"""What a person sees: a progress bar, curves and samples on a terminal; plain lines elsewhere; JSON when asked."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console as Rich
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from clearhead.training import Evaluated, Stepped
    from clearhead.workflows import Finished, Sampled, Started, WorkflowEvent

LINES = 20  # of progress in a whole run, where there is no terminal
SAMPLE_CHARACTERS = 240
NAMES = {"bleu": "BLEU (greedy)"}  # of figures, as a person reads them


class _Rich(Rich):
    def on_broken_pipe(self) -> None:
        """Rich would end the process at once; a training has something to save first."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        raise BrokenPipeError


class Console:
    """Observes a workflow. With `json`, what is seen goes to standard error, and standard output holds the result."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.rich = _Rich(file=sys.stderr if json else sys.stdout, highlight=False, soft_wrap=True)
        self.bar: Progress | None = None
        self.task = TaskID(0)
        self.steps = 0
        self.tokens, self.seconds, self.first = 0, 0.0, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close_bar()

    def observe(self, event: "WorkflowEvent") -> None:
        """Show one event."""
        name = type(event).__name__.lower()
        getattr(self, f"_{name}")(event)

    def say(self, text: str, style: str = "") -> None:
        """One line, never wrapped or interpreted."""
        self.rich.print(Text(text, style=style))

    @contextmanager
    def progress(self, doing: str) -> Iterator[Callable[[int, int], None]]:
        """A bar on standard error, where that is a terminal, for work that says how much of it is done, and of what."""
        columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        terminal = Rich(stderr=True)
        with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
            task = bar.add_task(doing, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def result(self, payload: Mapping[str, Any]) -> None:
        """The one JSON object of the command, when JSON was asked for."""
        if self.json:
            print(json.dumps(payload, ensure_ascii=False))

    def _said(self, event: Any) -> None:
        head, colon, rest = event.text.partition(": ")
        line = Text(head + colon, style="bold") + Text(rest) if colon and " " not in head else Text(event.text)
        self.rich.print(line)

    def _passed(self, event: Any) -> None:
        self.say(event.text, "green")

    def _started(self, event: "Started") -> None:
        self.steps = event.steps
        if event.step:
            self.say(f"going on after step {event.step:,} of {event.steps:,} in {event.folder}")
        if self.rich.is_terminal:
            self.bar = Progress(
                TextColumn("step {task.completed:>6,.0f}/{task.total:,.0f}"),
                BarColumn(),
                TextColumn("{task.fields[news]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=self.rich,
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=event.steps, completed=event.step, news="")

    def _stepped(self, event: "Stepped") -> None:
        self.tokens, self.seconds = self.tokens + event.tokens, self.seconds + event.seconds
        news = f"loss {event.loss:.4f}  {self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"
        if self.bar:
            self.bar.update(self.task, completed=event.step, news=news)
        if self.first or (not self.bar and event.step % max(1, self.steps // LINES) == 0):
            rate = f"rate {event.learning_rate:.2e}  gradient {event.gradient_norm:.2f}"
            self.say(f"step {event.step:>6,}/{self.steps:,}  {news}  {rate}")
        if event.skipped:
            self.say(f"step {event.step:,} was skipped: its loss or gradient was not finite", "yellow")
        self.first = False

    def _evaluated(self, event: "Evaluated") -> None:
        best = "  best so far" if event.best else ""
        self.say(
            f"step {event.step:>6,}/{self.steps:,}  validation {event.loss:.4f} over {event.tokens:,} tokens{best}",
            "bold green" if event.best else "bold",
        )

    def _sampled(self, event: "Sampled") -> None:
        for name, value in event.scores.items():
            self.say(f"step {event.step:>6,}/{self.steps:,}  validation {NAMES.get(name, name)} {value:.1f}", "bold")
        if self.bar or event.step in (0, self.steps):
            self.say("\n" + event.text[:SAMPLE_CHARACTERS].strip() + "\n", "dim" if event.step < self.steps else "")

    def _finished(self, event: "Finished") -> None:
        from clearhead.inspection import draw

        self._close_bar()
        self.say(draw(event.curve, width=min(self.rich.width, 100), encoding=self.rich.encoding))
        self.say(event.verdict, "bold")
        self.say(f"\nThe run is in {event.folder}; report.html there shows it all. What you may want next:")
        for command in event.commands:
            self.say("  " + command)

    def _close_bar(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None
