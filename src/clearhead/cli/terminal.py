"""What a terminal shows: colors and bars, drawn by rich. Where there is no terminal, none of this is loaded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, cast

from rich.console import Console as Rich
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from clearhead.cli.output import Output
from clearhead.pages import one_line, printable


class Terminal:
    """Shows lines with their styles, and below them a bar that a training moves."""

    def __init__(self, out: Output) -> None:
        self.rich = _rich(out)
        self.width, self.encoding = self.rich.width, self.rich.encoding
        self.bar: Progress | None = None
        self.live: Live | None = None  # shows the line that the next one replaces
        self.task = TaskID(0)

    @property
    def rewrites(self) -> bool:
        """Whether what was printed can be drawn over."""
        return self.rich.is_terminal

    @property
    def has_bar(self) -> bool:
        """Whether a bar tells how far the training is."""
        return self.bar is not None

    @property
    def has_hues(self) -> bool:
        """Whether shades of a color can be told apart: not where NO_COLOR is set, nor with 16 colors."""
        return self.rich.color_system in ("256", "truecolor") and not self.rich.no_color

    def line(self, *pieces: tuple[str, str]) -> None:
        """One line of texts, each with its style; never wrapped or interpreted."""
        self._replace()
        self.rich.print(Text.assemble(*((one_line(text), style) for text, style in pieces)))

    def block(self, text: str, style: str = "") -> None:
        """A text of several lines, in one style."""
        self._replace()
        self.rich.print(Text(printable(text), style))

    def passing(self, text: str) -> None:
        """A line that the next one replaces, where what is printed can be drawn over."""
        if not self.rich.is_terminal:
            self.line((text, ""))
            return
        if self.live is None:
            self.live = Live(
                console=self.rich, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
            )
            self.live.start()
        self.live.update(Text(one_line(text)), refresh=True)

    def _replace(self) -> None:
        if self.live:
            self.live.stop()
            self.live = None

    def begin(self, step: int, steps: int) -> None:
        """A bar for a training, where what is printed can be drawn over."""
        self._replace()
        if self.rich.is_terminal:
            self.bar = Progress(
                TextColumn("step {task.completed:>6,.0f}/{task.total:,.0f}"),
                BarColumn(),
                TextColumn("{task.fields[news]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=self.rich,
                transient=True,
                redirect_stdout=False,  # rich would pass on whatever others print there
                redirect_stderr=False,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=steps, completed=step, news="")

    def advance(self, step: int, news: str) -> None:
        """Move the bar, if there is one."""
        if self.bar:
            self.bar.update(self.task, completed=step, news=news)

    def set_steps(self, steps: int) -> None:
        """There will be this many steps, fewer or more than the bar was begun with."""
        if self.bar:
            self.bar.update(self.task, total=steps)

    def end(self) -> None:
        """Take the bar away."""
        self._replace()
        if self.bar:
            self.bar.stop()
            self.bar = None


@contextmanager
def progress(doing: str, out: Output) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that says how much of it is done, and of what."""
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    rich = _rich(out)
    with Progress(
        *columns,
        console=rich,
        disable=not rich.is_terminal,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _rich(out: Output) -> Rich:
    """Rich draws from a thread of its own; what that thread meets of a broken stream, `out` remembers."""
    return Rich(file=cast(IO[str], out), highlight=False, soft_wrap=True)
