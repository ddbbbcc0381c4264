"""What all tests share."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# A background shell starts its jobs with Ctrl-C ignored, and so would be the processes that tests start and interrupt.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("clearhead", deadline=None)  # a busy machine is not a fault
settings.load_profile("clearhead")


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Only a power cut could tell; that files are flushed, and in which order, is tested where they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2` each process takes half of the files, and helps the other in the end.

    Dealt out in small pieces, a file's tests would be in both processes, and its costly fixtures made in both.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)
