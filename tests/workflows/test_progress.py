"""What a training shows to people who call it from Python, and to whom it shows nothing."""

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from workflow_helpers import STEPS, tiny, write_text

import clearhead as ch
from clearhead.errors import InterruptedRunError
from clearhead.inspection import verdict
from clearhead.training import Stepped
from clearhead.workflows import Preparing, WorkflowEvent, narration, progress, training
from clearhead.workflows.narration import Narrator
from clearhead.workflows.progress import StreamScreen


class Screen(io.StringIO):
    """A terminal's stream."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def lines_on(screen: io.StringIO) -> list[str]:
    """What stands there in the end: of a line that was rewritten, its last version."""
    return [line.split("\r")[-1].rstrip() for line in screen.getvalue().split("\n")]


@pytest.fixture(autouse=True)
def text(monkeypatch: pytest.MonkeyPatch) -> None:
    write_text()
    monkeypatch.setattr(progress, "PAUSE", 0.0)


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """In the place of standard error, for the test's own time: pytest puts its own there between fixtures and test."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def train(**options: Any) -> ch.Run:
    return ch.train("my.txt", out="run", options=tiny(), check=False, **options)


def test_a_terminal_shows_how_it_goes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    screen = a_terminal(monkeypatch)
    train()
    written, lines = screen.getvalue(), lines_on(screen)
    assert written.count("\rstep ") >= STEPS
    assert " left" in written
    assert [line for line in lines if line.startswith("model: ")]
    evaluations = [line for line in lines if "  validation " in line]
    assert len(evaluations) == 3
    assert all(" bits per byte" in line for line in evaluations), "as the command tells it"
    assert lines[-2].startswith("The run is in run;")
    assert not [line for line in lines if " left" in line], "the last one is taken away"
    assert capsys.readouterr().out == ""
    ch.resume("run", options={"train": {"steps": STEPS + 1}})
    assert f"step     10/{STEPS + 1}" in screen.getvalue()


def test_the_progress_of_the_preparation_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PAUSE", 0.0)
    screen = a_terminal(monkeypatch)
    train()
    assert screen.getvalue().startswith("\rpreparing the data: 0%"), "at once, so that nobody waits without a word"
    assert not [line for line in lines_on(screen) if "preparing the data" in line]


def test_where_nothing_can_be_replaced_the_preparation_is_a_line_after_a_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    narrator = Narrator(StreamScreen(stream, rewrites=False))
    narrator.tell(Preparing(0.1))
    monkeypatch.setattr(narration, "SILENCE", 0.0)
    narrator.tell(Preparing(0.2))
    assert stream.getvalue() == "preparing the data: 20%\n"


def test_an_interruption_before_the_training_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "open_task", interrupted)
    with pytest.raises(InterruptedRunError, match=r"^interrupted before the training began; nothing is kept$"):
        train()
    assert not Path("run").exists()


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_terminal(monkeypatch)
    train(progress=False)
    ch.resume("run", options={"train": {"steps": STEPS + 1}}, progress=False)
    assert screen.getvalue() == ""


def test_who_observes_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_terminal(monkeypatch)
    events: list[WorkflowEvent] = []
    train(on_event=events.append)
    assert screen.getvalue() == ""
    assert len([event for event in events if isinstance(event, Stepped)]) == STEPS


def test_a_log_has_a_first_and_a_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads it hours later knows that a training ran, and where it is; a program's output stays its own."""
    run = train()
    out, err = capsys.readouterr()
    first, last = err.splitlines()
    assert out == ""
    assert first == f"training {STEPS} steps in run; `progress=True` shows how it goes"
    assert last == f"{verdict(run.plot().curve, run.config.model.vocab_size)} The run is in run."
    ch.resume("run", options={"train": {"steps": STEPS + 1}})
    assert capsys.readouterr().err.splitlines()[0] == f"continuing after step {STEPS} of {STEPS + 1} in run"


def test_elsewhere_all_of_it_is_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    train(progress=False)
    assert capsys.readouterr() == ("", "")
    events: list[WorkflowEvent] = []
    ch.resume("run", options={"train": {"steps": STEPS + 1}}, progress=True, on_event=events.append)
    out, err = capsys.readouterr()
    assert out == ""
    assert "\r" not in err
    assert f"step     10/{STEPS + 1}  loss" in err
    assert events


def test_a_notebook_shows_it_where_it_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    train()
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1].startswith("The run is in run;")


def test_what_is_printed_after_an_interruption_begins_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = a_terminal(monkeypatch)

    def stop(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped) and event.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError):
        train(progress=True, on_event=stop)
    print("Traceback", file=screen)
    assert lines_on(screen)[-2] == "Traceback"


def test_a_stream_that_nobody_reads_stops_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    screen.close()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    assert len(train().history) == STEPS
    monkeypatch.setattr(sys, "stderr", None)
    assert ch.resume("run", options={"train": {"steps": STEPS + 1}}, progress=True).history
