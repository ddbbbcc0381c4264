"""The real command in a process of its own: Ctrl-C, SIGTERM, a closed pipe, two at once, a terminal, a narrow one."""

import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from child_processes import PATIENCE, TERMINAL, Child, on_a_terminal, read_before
from command_helpers import SMALL, TINY, write_text

from clearhead import cli
from clearhead.cli.console import Console
from clearhead.errors import OutputError
from clearhead.training import Stepped
from clearhead.workflows import Started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals of POSIX")

ENDLESS = [*SMALL, "--no-preflight", "--train.batch_size", "4", "--train.threads", "1", "--train.steps", "1000000"]
COMMAND = [sys.executable, "-c", "from clearhead.cli import main; main()"]
FORCED = {"FORCE_COLOR": "1"}  # a pipe is treated as a terminal


def start(*argv: str, **options: Any) -> Child:
    return Child([*COMMAND, *argv], **options)


def test_ctrl_c_saves_and_so_does_sigterm_and_a_second_training_waits() -> None:
    write_text()
    with start("train", "my.txt", "--out", "run", *ENDLESS) as training:
        training.wait_for("step      1/")
        training.send(signal.SIGSTOP)  # it is there, and takes no time from the second
        code, _, err = start("resume", "run").end()
        assert (code, err.count("\n")) == (1, 1)
        assert "another process is training in run" in err
        training.send(signal.SIGCONT)
        training.send(signal.SIGINT)
        code, _, err = training.end()
    assert (code, err.count("\n")) == (130, 1), err
    assert "everything is saved; go on with: clearhead resume run" in err
    saved = {path.name for path in Path("run/checkpoints").iterdir()}
    assert len(saved) >= 1

    with start("resume", "run") as resumed:
        resumed.wait_for("continuing after step ")
        resumed.wait_for("\nstep ")
        resumed.send(signal.SIGTERM)
        code, _, err = resumed.end()
    assert (code, err.count("\n")) == (130, 1), err
    assert {path.name for path in Path("run/checkpoints").iterdir()} != saved


@pytest.mark.campaign
def test_sigterm_while_the_text_is_prepared_leaves_nothing() -> None:
    os.mkfifo("slow.txt")  # a text that never ends, because nobody writes it
    with start("train", "slow.txt", *TINY) as preparing:
        deadline = time.monotonic() + PATIENCE
        while not list(Path().glob("runs/*/.lock")):
            assert time.monotonic() < deadline, "it has not begun"
            time.sleep(0.05)
        preparing.send(signal.SIGTERM)
        code, _, err = preparing.end()
    assert (code, err.count("\n")) == (130, 1), err
    assert not list(Path("runs").iterdir())


@pytest.mark.parametrize(
    "environment", [pytest.param({}, id="lines"), pytest.param(FORCED, id="bar", marks=pytest.mark.campaign)]
)
def test_when_the_pipe_is_closed_it_stops_and_saves(environment: dict[str, str]) -> None:
    write_text()
    argv = ["train", "my.txt", "--out", "run", "--train.eval_every", "5", *ENDLESS]
    with start(*argv, env=os.environ | environment) as training:
        training.wait_for("step      1/")
        training.hang_up()
        code, _, err = training.end()
    assert code == 130
    assert "everything is saved" in err
    assert "Traceback" not in err


@pytest.mark.campaign
def test_a_list_that_nobody_reads_ends_well() -> None:
    with start("list") as listing:
        listing.hang_up()
        assert listing.end()[0] == 0


def test_a_pipe_whose_end_another_thread_met_stops_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar is drawn in a thread of its own, and nobody listens to what that thread raises."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        console = Console()
        console.on_event(Started(Path("run"), 0, 10, None))
        bar = getattr(console.shown, "bar")  # noqa: B009
        os.close(reader)
        meeting = threading.Thread(target=bar.refresh)
        meeting.start()
        meeting.join(timeout=PATIENCE)
        with pytest.raises(OutputError) as refused:
            console.on_event(Stepped(1, 2.0, 1e-3, 1.0, 64, 0.1, skipped=False))
        assert refused.value.nobody_reads
        with pytest.raises(OutputError):
            console.on_event(Stepped(2, 2.0, 1e-3, 1.0, 64, 0.1, skipped=False))
        console.shown.end()


@pytest.mark.campaign
def test_stopped_with_nobody_to_tell_it_saves() -> None:
    """Both pipes are closed, and it is told twice to stop."""
    write_text()
    with start("train", "my.txt", "--out", "run", *ENDLESS) as training:
        training.wait_for("step      1/")
        training.send(signal.SIGSTOP)
        training.hang_up()
        training.hang_up("stderr")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            training.send(number)
        assert training.end()[0] == 130
    assert list(Path("run/checkpoints").glob("step-*"))
    assert Path("run/report.html").exists()


@pytest.mark.campaign
def test_a_second_signal_does_not_cut_the_saving_off() -> None:
    write_text()
    with start("train", "my.txt", "--out", "run", *ENDLESS) as training:
        training.wait_for("step      1/")
        for number in (signal.SIGINT, signal.SIGTERM):
            training.send(number)
            time.sleep(0.02)
        code, _, err = training.end()
    assert (code, err.count("\n")) == (130, 1), err
    assert "everything is saved" in err


@pytest.mark.campaign
def test_a_terminal_that_goes_away_is_noticed_where_hanging_up_is_ignored() -> None:
    """As under nohup: what is written to it is an error of input and output, not a broken pipe."""
    import pty

    write_text()
    terminal, other_end = pty.openpty()
    training_command = [*COMMAND, "train", "my.txt", "--out", "run", "--train.eval_every", "5", *ENDLESS]
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *training_command]
    environment = os.environ | TERMINAL
    with Child(command, stdin=other_end, stdout=other_end, env=environment, start_new_session=True) as training:
        os.close(other_end)
        sent, deadline = b"", time.monotonic() + PATIENCE
        while b"step      1/" not in sent:
            sent += read_before(terminal, deadline)
        os.close(terminal)
        code, _, err = training.end()
    assert (code, err.count("\n")) == (130, 1), err
    assert "standard output cannot be written (Input/output error)" in err
    assert "everything is saved; go on with: clearhead resume run" in err


def test_a_terminal_gets_a_bar_and_colors() -> None:
    write_text()
    code, shown = on_a_terminal([*COMMAND, "train", "my.txt", *TINY])
    assert code == 0, shown
    assert_a_bar(shown)
    assert is_colored(shown)
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is back"


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_no_colors_if_told_so(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_text()
    terminal = Terminal()
    for name, value in (TERMINAL | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert cli.run(["train", "my.txt", *TINY]) == 0
    assert_a_bar(terminal.getvalue())
    assert is_colored(terminal.getvalue()) != ("NO_COLOR" in environment)


class Terminal(io.StringIO):
    """What is printed to it would be seen."""

    def isatty(self) -> bool:
        return True


def assert_a_bar(shown: str) -> None:
    assert "4/4" in shown
    assert "tokens/s" in shown
    assert "\x1b[2K" in shown, "a bar that is drawn again and again"


def is_colored(shown: str) -> bool:
    return any(code in shown for code in ("\x1b[32m", "\x1b[1;32m", "\x1b[38;5;"))


@pytest.mark.campaign
def test_a_third_ctrl_c_ends_a_training_with_one_sentence() -> None:
    write_text()
    with start("train", "my.txt", "--out", "run", *ENDLESS) as training:
        training.wait_for("step      1/")
        training.send(signal.SIGSTOP)
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # equal signals that wait would be one
            training.send(name)
        training.send(signal.SIGCONT)
        code, _, err = training.end()
    assert (code, err.count("\n")) == (130, 1), err
    assert err.startswith("clearhead: ")
