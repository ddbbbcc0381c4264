"""Stopping a training where nothing is lost: between two steps, when all of the last one was told."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from clearhead.workflows.events import Observer, WorkflowEvent
from clearhead.workflows.tasks import Batches


def until(interrupted: threading.Event, batch: Batches) -> Batches:
    """Batches until the event is set: between two steps, when all of the last one was told, is the place to stop."""

    def next_batch(step: int) -> Sequence[Tensor]:
        if interrupted.is_set():
            raise KeyboardInterrupt
        return batch(step)

    return next_batch


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM and a closed terminal set the event, so that the step in progress can end; twice ends it now."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def ask(number: int, frame: Any) -> None:
        if interrupted.is_set():
            raise SystemExit(128 + number)
        interrupted.set()

    wanted = {"SIGINT", "SIGTERM", "SIGHUP"} & {number.name for number in signal.Signals}  # Windows has no SIGHUP
    heard = [signal.Signals[name] for name in wanted if signal.getsignal(signal.Signals[name]) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heard}  # what nohup ignores stays ignored
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def while_watched(observe: Observer, interrupted: threading.Event) -> Observer:
    """Whoever watched may go away (a pipe is closed): then nothing more is told, and the training stops and saves."""

    def tell(event: WorkflowEvent) -> None:
        try:
            observe(event)
        except BrokenPipeError:
            interrupted.set()

    return tell
