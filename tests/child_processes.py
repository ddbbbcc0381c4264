"""Programs in processes of their own, each with a limit: a suite fails, it never waits for ever."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

PATIENCE = 100.0  # seconds; a busy machine is not a fault, and less than a test has

TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}


def finish(command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end and return what it printed. It can import what the tests can."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False, "env": env, **options}
    done: subprocess.CompletedProcess[str] = subprocess.run(command, **options)
    return done


class Child:
    """A program that runs beside the test, what it prints read as bytes. Killed at the end of a `with`."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        pipe = subprocess.PIPE
        options = {"stdout": pipe, "stderr": pipe} | options
        self.process: subprocess.Popen[Any] = subprocess.Popen(command, **options)
        self.printed = b""

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(timeout=PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def wait_for(self, text: str) -> None:
        """Until it has printed the text on its standard output."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.printed:
            block = read_before(self.process.stdout.fileno(), deadline)
            assert block, f"it ended before it printed {text!r}"
            self.printed += block

    def hang_up(self, stream: str = "stdout") -> None:
        """Read no more of what it prints."""
        getattr(self.process, stream).close()
        setattr(self.process, stream, None)

    def send(self, number: int) -> None:
        """A signal."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for its end: the exit code, and what more it printed on both streams."""
        out, err = (part or b"" for part in self.process.communicate(timeout=PATIENCE))
        return self.process.returncode, (self.printed + out).decode(), err.decode()


def read_before(handle: int, deadline: float) -> bytes:
    """What comes next from a pipe or a terminal; nothing at its end."""
    ready, _, _ = select.select([handle], [], [], max(0, deadline - time.monotonic()))
    assert ready, f"nothing came for {PATIENCE:g} seconds"
    try:
        return os.read(handle, 1 << 16)
    except OSError:  # Linux says so when the other end of a terminal is closed
        return b""


def exit_code(child: int, patience: float = PATIENCE) -> int:
    """Wait for a forked process; one that takes too long is killed, and fails the test."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, os.WNOHANG)
    raise AssertionError(f"a process did not end within {patience:g} seconds")


def on_a_terminal(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a program on a terminal of 80 columns: its exit code, and all that the terminal is sent."""
    import pty

    terminal, other_end = pty.openpty()
    variables = {**os.environ, **TERMINAL, **(environment or {})}
    process = subprocess.Popen(
        command, env=variables, start_new_session=True, stdin=other_end, stdout=other_end, stderr=other_end
    )
    os.close(other_end)
    try:
        sent, deadline = b"", time.monotonic() + PATIENCE
        while block := read_before(terminal, deadline):
            sent += block
        return process.wait(timeout=PATIENCE), sent.decode()
    finally:
        os.close(terminal)
        process.kill()
        process.wait(timeout=PATIENCE)
