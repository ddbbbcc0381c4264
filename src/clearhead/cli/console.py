"""What a person sees: a progress bar, curves and samples on a terminal; plain lines elsewhere; JSON when asked.

With JSON, nothing that the object holds is shown as well. Only the progress of a training goes to standard error.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from clearhead.cli.lines import Lines
from clearhead.cli.output import Output, in_flags, json_line, notice, standard_error, standard_output

if TYPE_CHECKING:
    from clearhead.cli.terminal import Terminal
    from clearhead.workflows.events import WorkflowEvent
    from clearhead.workflows.narration import Narrator


class Console:
    """Observes a workflow, and shows a verb's result: as text, or with `json` as one object on standard output."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.out = standard_error() if json else standard_output()
        self.shown = _shown_on(self.out)
        self.narrator: Narrator | None = None

    def __enter__(self) -> Self:
        if not self.out.is_open and not self.json:
            notice("standard output is closed, so nothing of the training is shown")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shown.end()

    def on_event(self, event: "WorkflowEvent") -> None:
        """Show one event.

        Raises:
            OutputError: nobody sees it any more, whichever thread found that out. Of a stream that was closed from
                the start nothing is expected, and nothing said.
        """
        if self.out.is_open:
            self._show(event)
            self.out.check()

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None where no terminal shows it."""
        return self.shown.width if self.out.is_styled else None

    def say(self, text: str, style: str = "") -> None:
        """One line of a result, never wrapped or interpreted; the object holds it in its own form."""
        if not self.json:
            self.shown.line((text, style))

    def line(self, *pieces: tuple[str, str]) -> None:
        """The same for a line of several texts, each with its style."""
        if not self.json:
            self.shown.line(*pieces)

    def text(self, text: str) -> None:
        """A result that is a text: exactly as it is where no terminal shows it."""
        if not self.json:
            self.out.text(text + "\n")

    @property
    def canvas(self) -> tuple[Literal["color", "shades", "numbers"], int | None]:
        """How a map is drawn: colors or shades on a terminal, in its width; numbers elsewhere, of any width."""
        if not self.out.is_styled:
            return "numbers", None
        return "color" if self.shown.has_hues else "shades", self.shown.width

    def progress(self, doing: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """A bar on standard error, where that is a terminal, for work that says how much of it is done, and of what."""
        if self.json or not standard_error().is_styled:
            return nullcontext(lambda done, total: None)
        from clearhead.cli.terminal import progress

        return progress(doing, standard_error())

    def result(self, payload: Mapping[str, object]) -> None:
        """The one JSON object of the command, when JSON was asked for."""
        if self.json:
            standard_output().text(json_line(payload))

    def _show(self, event: "WorkflowEvent") -> None:
        from clearhead.workflows.events import Finished, Notice  # loads torch; with an event it is loaded
        from clearhead.workflows.narration import Narrator

        self.narrator = self.narrator or Narrator(self.shown)
        if isinstance(event, Finished) and self.json:
            self.shown.end()
            return
        self.narrator.tell(Notice(in_flags(event.text), event.step) if isinstance(event, Notice) else event)
        if isinstance(event, Finished):
            self.say("What you can do next:")
            for command in event.commands:
                self.say("  " + command)


def _shown_on(out: Output) -> "Lines | Terminal":
    if not out.is_styled:
        return Lines(out)
    from clearhead.cli.terminal import Terminal  # rich takes longer to load than lines to print

    return Terminal(out)
