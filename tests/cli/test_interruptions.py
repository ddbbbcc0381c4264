"""The real command in a process of its own: Ctrl-C, SIGTERM, a closed pipe, two at once, a terminal, a narrow one."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_helpers import SMALL, TINY, write_text

from clearhead import cli

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals of POSIX")

PATIENCE = 120.0  # seconds; a busy machine is not a fault
ENDLESS = [*SMALL, "--train.batch_size", "4", "--train.threads", "1", "--train.steps", "1000000"]
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
COMMAND = [sys.executable, "-c", "from clearhead.cli import main; main()"]


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command; what is still running in the end is ended."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*COMMAND, *words], stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def wait_for(line: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    while line not in (read := process.stdout.readline()):
        assert read, f"it ended before it said {line!r}"


def test_ctrl_c_saves_and_so_does_sigterm_and_a_second_training_waits(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    write_text()
    training = start("train", "my.txt", "--out", "run", *ENDLESS)
    wait_for("step      1/", training)
    training.send_signal(signal.SIGSTOP)  # it is there, and takes no time from the second
    second = start("resume", "run")
    _, said = second.communicate(timeout=PATIENCE)
    assert (second.returncode, said.count("\n")) == (1, 1)
    assert "another process is training in run" in said
    training.send_signal(signal.SIGCONT)
    training.send_signal(signal.SIGINT)
    _, said = training.communicate(timeout=PATIENCE)
    assert (training.returncode, said.count("\n")) == (130, 1), said
    assert "everything is saved; go on with: clearhead resume run" in said
    saved = {path.name for path in Path("run/checkpoints").iterdir()}
    assert len(saved) >= 1

    resumed = start("resume", "run")
    wait_for("going on after step ", resumed)
    wait_for("step ", resumed)
    resumed.send_signal(signal.SIGTERM)
    _, said = resumed.communicate(timeout=PATIENCE)
    assert (resumed.returncode, said.count("\n")) == (130, 1), said
    assert {path.name for path in Path("run/checkpoints").iterdir()} != saved


def test_sigterm_while_the_text_is_prepared_leaves_nothing(start: Callable[..., subprocess.Popen[str]]) -> None:
    os.mkfifo("slow.txt")  # a text that never ends, because nobody writes it
    preparing = start("train", "slow.txt", *TINY)
    deadline = time.monotonic() + PATIENCE
    while not list(Path().glob("runs/*/.lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    preparing.send_signal(signal.SIGTERM)
    _, said = preparing.communicate(timeout=PATIENCE)
    assert (preparing.returncode, said.count("\n")) == (130, 1), said
    assert not list(Path("runs").iterdir())


@pytest.mark.parametrize("forced", [False, True], ids=["lines", "bar"])
def test_when_the_pipe_is_closed_it_stops_and_saves(
    forced: bool, start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    write_text()
    training = start("train", "my.txt", "--out", "run", "--train.eval_every", "5", *ENDLESS)
    wait_for("step      1/", training)
    assert training.stdout is not None
    assert training.stderr is not None
    training.stdout.close()
    said = training.stderr.read()
    assert training.wait(timeout=PATIENCE) == 130
    assert "everything is saved" in said
    assert "Traceback" not in said
    listing = start("list")
    assert listing.stdout is not None
    listing.stdout.close()
    assert listing.wait(timeout=PATIENCE) == 0


def on_a_terminal(words: list[str]) -> str:
    """What a terminal of 80 columns is sent."""
    import pty

    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERMINAL)
        os.execv(sys.executable, [*COMMAND, *words])
    sent = b""
    try:
        while block := os.read(terminal, 1 << 16):
            sent += block
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, sent.decode()
    return sent.decode()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_terminal_gets_a_bar_and_colours() -> None:
    write_text()
    shown = on_a_terminal(["train", "my.txt", *TINY])
    assert_a_bar(shown)
    assert is_coloured(shown)
    assert shown.rstrip().endswith("--train.steps 8") or "\x1b[?25h" in shown[-40:], "the cursor is back"


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_no_colours_if_told_so(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_text()
    terminal = Terminal()
    for name, value in (TERMINAL | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert cli.run(["train", "my.txt", *TINY]) == 0
    assert_a_bar(terminal.getvalue())
    assert is_coloured(terminal.getvalue()) != ("NO_COLOR" in environment)


class Terminal(io.StringIO):
    """What is printed to it would be seen."""

    def isatty(self) -> bool:
        return True


def assert_a_bar(shown: str) -> None:
    assert "4/4" in shown
    assert "tokens/s" in shown
    assert "\x1b[2K" in shown, "a bar that is drawn again and again"


def is_coloured(shown: str) -> bool:
    return any(code in shown for code in ("\x1b[32m", "\x1b[1;32m", "\x1b[38;5;"))
