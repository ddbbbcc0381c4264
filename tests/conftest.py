"""What all tests share."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from sampled_cases import leave_to_the_campaign

# A background shell starts its jobs with Ctrl-C ignored, and so would be the processes that tests start and interrupt.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where Python is told to keep no bytecode, each of a hundred children would compile the whole package once more, and
# each process of the suite would rewrite every assertion.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine is not a fault; forty examples a run find in a few runs what a hundred find in one.
settings.register_profile("clearhead", deadline=None, max_examples=40)
settings.load_profile("clearhead")


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Only a power cut could tell; that files are flushed, and in which order, is tested where they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def folder_of_compiled_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all processes of a suite: what the first of them compiles, the others find."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder


@pytest.fixture
def compiled_code(folder_of_compiled_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code is kept for the tests after this one."""
    monkeypatch.setenv("CLEARHEAD_CACHE", str(folder_of_compiled_code))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with many cases the suite runs some, and the campaign the others."""
    leave_to_the_campaign(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """While tests are collected, nearly all that is made stays: looking for garbage took a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """The collector no longer looks through what stays to the end: torch, and ten thousand tests."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2` each process takes half of the files, and helps the other in the end.

    Dealt out in small pieces, a file's tests would be in both processes, and its costly fixtures made in both.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)
