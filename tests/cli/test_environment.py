"""What the command sets before torch loads, and how it loads it."""

import gc
import os
import subprocess
import sys

import pytest
import torch  # noqa: F401
from child_processes import finish

from clearhead.cli import command
from clearhead.cli.environment import load_workflow
from clearhead.errors import ClearheadError, SilentExit

CHILD = """
import gc
import sys
from clearhead.cli.environment import load_workflow
before = gc.get_stats()
load_workflow("train")
assert gc.isenabled(), "the collector did not come back"
assert "clearhead.workflows.training" in sys.modules, "it is loaded later, while the collector looks on"
assert gc.get_stats() == before, "it looked for garbage while modules were loading"
assert gc.get_freeze_count() > 100_000, "it would look through torch again and again"
"""


def test_a_workflow_loads_without_a_look_for_garbage_and_is_never_looked_through() -> None:
    subprocess.run([sys.executable, "-c", CHILD], check=True, timeout=100)


def test_a_program_that_has_torch_keeps_its_collector_as_it_is() -> None:
    frozen = gc.get_freeze_count()
    load_workflow("train")
    assert gc.get_freeze_count() == frozen
    assert gc.isenabled()


@pytest.mark.parametrize("own", [None, "7"])
def test_waiting_threads_yield_soon_also_in_a_notebook(own: str | None) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    code = "import clearhead, os; print(os.environ['GOMP_SPINCOUNT'])"
    done = finish([sys.executable, "-c", code], env=variables | ({"GOMP_SPINCOUNT": own} if own else {}))
    assert done.stdout.strip() == (own or "1000")


ENDS = {
    "what was printed is sent": ("print('sent')", "sent"),
    "what was registered runs": ("atexit.register(print, 'registered')", "registered"),
    "a thread is waited for": ("threading.Timer(0.1, print, ['waited for']).start()", "waited for"),
}


def end_of(code: str) -> "subprocess.CompletedProcess[str]":
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    code = f"import atexit, os, threading; from clearhead.cli.environment import leave; {code}"
    return finish([sys.executable, "-c", code], env=buffered)


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_lost_at_the_end(end: str) -> None:
    does, stdout = ENDS[end]
    done = end_of(f"{does}; leave(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, stdout + "\n", "")


def test_an_end_whose_output_nobody_takes_is_the_ordinary_one() -> None:
    lost = "print('lost'); os.close(1)"
    assert end_of(f"{lost}; leave(0)").returncode == end_of(lost).returncode == 120


LOST = "another process of this training ended"


@pytest.mark.parametrize(
    ("rank", "end", "out", "err"),
    [
        (0, SilentExit(1, LOST), f'{{"error": "{LOST}", "exit_code": 1}}\n', ""),  # the object is due, whoever tells it
        (1, SilentExit(1, LOST), "", ""),
        (1, ClearheadError(LOST), "", f"clearhead: {LOST}\n"),  # its standard output is nobody's
    ],
)
def test_json_is_that_of_the_first_process(
    rank: int,
    end: BaseException,
    out: str,
    err: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(argv: list[str]) -> int:
        raise end

    monkeypatch.setattr(command, "_dispatch", fail)
    monkeypatch.setenv("RANK", str(rank))
    assert command.run(["train", "my.txt", "--json"]) == 1
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == (out, err)
