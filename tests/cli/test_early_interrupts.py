"""Ctrl-C at any moment of a command's life: exit code 130, one sentence, no traceback."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from child_processes import PATIENCE, Child
from command_helpers import SMALL, write_text

from clearhead.cli import interrupts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

ENDLESS = ["train", "my.txt", "--out", "run", *SMALL, "--train.threads", "1", "--train.steps", "1000000"]
# Before Ctrl-C is heard Python ends by the signal or with a traceback of its own start, however long a busy machine
# takes to come so far; how early it is heard has a test of its own.
OURS = """
import os
from clearhead.cli import interrupts, main

def listen():
    heard()
    os.write(1, b"begun\\n")

heard, interrupts.listen = interrupts.listen, listen
main()
"""


def interrupted_after(seconds: float, number: int, folder: Path) -> tuple[int, str]:
    """A training that is sent the signal so long after it listens; how it ended, and what it said."""
    with Child([sys.executable, "-c", OURS, *ENDLESS], cwd=folder) as command:
        command.wait_for("begun")
        time.sleep(seconds)
        command.send(number)
        code, _, err = command.end()
    return code, err


def assert_well_ended(code: int, err: str, when: float) -> None:
    assert code == 130, (when, code, err)
    assert err.count("\n") == 1, (when, err)
    assert err.startswith("clearhead: "), (when, err)


@pytest.mark.parametrize("when", [0, 0.4, 0.8, 1.4])
def test_ctrl_c_while_it_starts_is_a_sentence(when: float, tmp_path: Path) -> None:
    write_text()
    assert_well_ended(*interrupted_after(when, signal.SIGINT, tmp_path), when)


def test_of_several_processes_that_start_one_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert interrupted_after(0, signal.SIGTERM, tmp_path) == (130, "")


FIRST = """
import sys
before = {*sys.modules}
from clearhead.cli import interrupts, main

def listen():
    print(*{*sys.modules} - before)
    sys.exit()

interrupts.listen = listen
main()
"""


def test_ctrl_c_is_heard_before_anything_else_is_loaded(tmp_path: Path) -> None:
    with Child([sys.executable, "-c", FIRST], cwd=tmp_path) as command:
        code, out, err = command.end()
    assert (code, err) == (0, "")
    loaded = {name for name in out.split() if name.startswith("clearhead")}
    assert loaded == {"clearhead", "clearhead.cli", "clearhead.cli.interrupts", "clearhead.lazy"}
    assert len(out.split()) < 20, out


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_hundred_moments(number: int, tmp_path: Path) -> None:
    write_text()
    draw, ends = random.Random(number), Counter[str]()
    for _ in range(200):
        when = draw.uniform(0, 4)
        code, err = interrupted_after(when, number, tmp_path)
        assert_well_ended(code, err, when)
        ends[err.partition(" ")[2][:24]] += 1
        subprocess.run(["rm", "-rf", str(tmp_path / "run")], check=True, timeout=PATIENCE)
    print(dict(ends))


SWALLOWED = """
import signal, sys, time
from clearhead.cli import command, interrupts

class Swallows:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def work(words):
    interrupts.something_to_lose()
    {work}
    time.sleep(60)
    print("lost")
    return 0

command._dispatch = work
interrupts.listen()
command.run_process()
"""
IMPORTING = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException as error:
    raise ImportError("torn") from error
"""
WORKS = {
    "a destructor": "swallows = Swallows(); del swallows",
    "an import": "sys.path.insert(0, '.'); import importing; print('imported', flush=True)",
    "what a library makes of it": "\n    ".join(
        ["try:", "    signal.raise_signal(signal.SIGINT)", "except KeyboardInterrupt:", "    raise ImportError('torn')"]
    ),
}


@pytest.mark.parametrize("work", WORKS)
def test_an_interruption_is_never_lost_and_never_a_traceback(work: str, tmp_path: Path) -> None:
    (tmp_path / "importing.py").write_text(IMPORTING, encoding="utf-8")
    with Child([sys.executable, "-c", SWALLOWED.format(work=WORKS[work])], cwd=tmp_path) as command:
        code, out, err = command.end()
    assert (code, err) == (130, f"clearhead: {interrupts.SENTENCE}\n")
    assert "lost" not in out
    assert ("imported" in out) == (work == "an import")


def test_what_a_background_shell_ignores_stays_ignored(tmp_path: Path) -> None:
    program = "import signal; from clearhead.cli import interrupts; interrupts.listen(); import os;" + (
        "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    )
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", program]
    with Child(ignoring, env=os.environ, cwd=tmp_path) as command:
        assert command.end() == (0, "True\n", "")
