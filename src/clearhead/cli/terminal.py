"""What a terminal shows: colours and bars, drawn by rich. Where there is no terminal, none of this is loaded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console as Rich
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from clearhead.cli.lines import nobody_reads


class _Rich(Rich):
    def on_broken_pipe(self) -> None:
        """Rich would end the process at once; a training has something to save first."""
        nobody_reads(self.file)
        raise BrokenPipeError


class Terminal:
    """Shows lines with their styles, and below them a bar that a training moves."""

    def __init__(self, file: TextIO) -> None:
        self.rich = _Rich(file=file, highlight=False, soft_wrap=True)
        self.width, self.encoding = self.rich.width, self.rich.encoding
        self.bar: Progress | None = None
        self.task = TaskID(0)

    @property
    def has_bar(self) -> bool:
        """Whether a bar tells how far the training is."""
        return self.bar is not None

    def show(self, *pieces: tuple[str, str]) -> None:
        """One line of texts, each with its style; never wrapped or interpreted."""
        self.rich.print(Text.assemble(*pieces))

    def begin(self, step: int, steps: int) -> None:
        """A bar for a training, where what is printed can be drawn over."""
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
            self.task = self.bar.add_task("", total=steps, completed=step, news="")

    def advance(self, step: int, news: str) -> None:
        """Move the bar, if there is one."""
        if self.bar:
            self.bar.update(self.task, completed=step, news=news)

    def end(self) -> None:
        """Take the bar away."""
        if self.bar:
            self.bar.stop()
            self.bar = None


@contextmanager
def progress(doing: str, file: TextIO) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that says how much of it is done, and of what."""
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    terminal = Rich(file=file)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
