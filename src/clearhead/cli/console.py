"""What a person sees: a progress bar, curves and samples on a terminal; plain lines elsewhere; JSON when asked.

With JSON, nothing that the object holds is shown as well. Only the progress of a training goes to standard error.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Self, assert_never

from clearhead.cli.lines import Lines
from clearhead.cli.output import Output, json_line, notice, standard_error, standard_output
from clearhead.wording import counted, whole_words

if TYPE_CHECKING:
    from clearhead.cli.terminal import Terminal
    from clearhead.training import Evaluated, Stepped
    from clearhead.workflows import Averaged, Finished, Notice, Passed, Read, Replanned, Sampled, Started, WorkflowEvent

LINES = 20  # of progress in a whole run, where there is no terminal
SAMPLE_CHARACTERS = 240
NAMES = {"bleu": "BLEU (greedy)"}  # of figures, as a person reads them


class Console:
    """Observes a workflow, and shows a verb's result: as text, or with `json` as one object on standard output."""

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.out = standard_error() if json else standard_output()
        self.shown = _shown_on(self.out)
        self.steps = 0
        self.bytes_per_token: float | None = None
        self.tokens, self.seconds, self.first = 0, 0.0, True

    def __enter__(self) -> Self:
        if not self.out.is_open and not self.json:
            notice("standard output is closed, so nothing of the training is shown")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shown.end()

    def observe(self, event: "WorkflowEvent") -> None:
        """Show one event.

        Raises:
            OutputError: nobody sees it any more, whichever thread found that out. Of a stream that was closed from
                the start nothing is expected, and nothing said.
        """
        if self.out.is_open:
            self._show(event)
            self.out.check()

    def say(self, text: str, style: str = "") -> None:
        """One line of a result, never wrapped or interpreted; the object holds it in its own form."""
        if not self.json:
            self._line(text, style)

    def text(self, text: str) -> None:
        """A result that is a text: exactly as it is where no terminal shows it."""
        if not self.json:
            self.out.text(text + "\n")

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
        from clearhead.training.events import Evaluated, Notice, Stepped  # loads torch; with an event it is loaded
        from clearhead.workflows.events import Averaged, Finished, Passed, Read, Replanned, Sampled, Started

        match event:
            case Notice():
                self._notice(event)
            case Passed():
                self._passed(event)
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
            case Averaged():
                self._averaged(event)
            case Read():
                self._read(event)
            case Finished():
                self._finished(event)
            case _:
                assert_never(event)

    def _notice(self, event: "Notice") -> None:
        head, colon, rest = event.text.partition(": ")
        self.shown.line(*([(head + colon, "bold"), (rest, "")] if colon and " " not in head else [(event.text, "")]))

    def _passed(self, event: "Passed") -> None:
        self._line(event.text, "green")

    def _started(self, event: "Started") -> None:
        self.steps, self.bytes_per_token = event.steps, event.bytes_per_token
        if event.step:
            self._line(f"continuing after step {event.step:,} of {event.steps:,} in {event.folder}")
        self.shown.begin(event.step, event.steps)

    def _replanned(self, event: "Replanned") -> None:
        pace = "slower" if event.steps < self.steps else "faster"
        self._line(f"the machine is {pace} than measured: {event.steps:,} steps fit into the time, not {self.steps:,}")
        self.steps = event.steps
        self.shown.lengthen(event.steps)

    def _stepped(self, event: "Stepped") -> None:
        self.tokens, self.seconds = self.tokens + event.tokens, self.seconds + event.seconds
        news = f"loss {event.loss:.4f}  {self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s"
        self.shown.advance(event.step, news)
        if self.first or (not self.shown.has_bar and event.step % max(1, self.steps // LINES) == 0):
            rate = f"rate {event.learning_rate:.2e}  gradient {event.gradient_norm:.2f}"
            self._line(f"step {event.step:>6,}/{self.steps:,}  {news}  {rate}")
        if event.skipped:
            self._line(f"step {event.step:,} was skipped: its loss or gradient was not finite", "yellow")
        self.first = False

    def _evaluated(self, event: "Evaluated") -> None:
        from clearhead.inspection import in_bits

        best = "  best so far" if event.best else ""
        bits = in_bits(event.loss, self.bytes_per_token)
        loss = f"validation {event.loss:.4f}{bits and ','}{bits}"
        self._line(
            f"step {event.step:>6,}/{self.steps:,}  {loss} over {event.tokens:,} tokens{best}",
            "bold green" if event.best else "bold",
        )

    def _sampled(self, event: "Sampled") -> None:
        for name, value in event.scores.items():
            self._line(f"step {event.step:>6,}/{self.steps:,}  validation {NAMES.get(name, name)} {value:.1f}", "bold")
        if self.shown.has_bar or event.step in (0, self.steps):
            sample = whole_words(event.text[:SAMPLE_CHARACTERS]).strip()
            self.shown.block(f"\n{sample}\n", "dim" if event.step < self.steps else "")

    def _averaged(self, event: "Averaged") -> None:
        verdict = "it is the run's model" if event.used else "a single one's is lower and stays the run's model"
        averaged = counted(event.checkpoints, "checkpoint")
        self._line(f"the mean of the last {averaged} has validation loss {event.loss:.4f}: {verdict}")

    def _read(self, event: "Read") -> None:
        self._line(event.score.line())

    def _finished(self, event: "Finished") -> None:
        self.shown.end()
        if self.json:
            return
        from clearhead.inspection import draw

        self.shown.block(draw(event.curve, width=min(self.shown.width, 100), encoding=self.shown.encoding))
        self.say(event.verdict, "bold")
        self.say("")
        self.say(f"The run is in {event.folder}; open its report.html for curves and samples. What you can do next:")
        for command in event.commands:
            self.say("  " + command)

    def _line(self, text: str, style: str = "") -> None:
        """One line of progress."""
        self.shown.line((text, style))


def _shown_on(out: Output) -> "Lines | Terminal":
    if not out.is_styled:
        return Lines(out)
    from clearhead.cli.terminal import Terminal  # rich takes longer to load than lines to print

    return Terminal(out)
