"""One thread that owns a model: whatever touches it runs there, one thing at a time."""

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from clearhead.server.http.errors import HttpError

T = TypeVar("T")

LOG = logging.getLogger(__name__)

SWITCH_SECONDS = 5e-4


class ModelThread:
    """Runs what it is given, in the order in which it comes. It sleeps where there is nothing to do.

    It is a daemon: a call that cannot be interrupted, such as a compiler's, does not hold up the end of the process.
    """

    def __init__(self, name: str) -> None:
        """
        Args:
            name: shown by debuggers.
        """
        self._work = deque[tuple[Callable[[], object], Future[object]]]()
        self._change = threading.Condition()
        self._is_closed = False
        self._running: Future[object] | None = None
        self._thread = threading.Thread(target=self._run, name=f"model {name}", daemon=True)

    def start(self) -> None:
        """Begin to run what waits."""
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs or waits."""
        with self._change:
            return not self._work and self._running is None

    @property
    def is_wanted(self) -> bool:
        """Whether what runs should make room: something waits, or the thread is to end."""
        return bool(self._work) or self._is_closed

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns, or raises. Whoever is cancelled while it waits is not run; while it runs, it ends.

        Raises:
            HttpError: 503, the thread is closed.
        """
        return await asyncio.wrap_future(self._submit(function))

    def post(self, function: Callable[[], object]) -> None:
        """Run a function of which nobody awaits the result; from any thread. What it raises is logged."""
        self._submit(function).add_done_callback(_log_failure)

    def close(self, seconds: float) -> bool:
        """Drop what waits, and wait for what runs, at most so long; whether it has ended. From any other thread."""
        with self._change:
            self._is_closed = True
            waiting, self._work = [*self._work], deque()
            self._change.notify()
        for _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(closed())
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        future = Future[T]()
        with self._change:
            if not self._is_closed:
                self._work.append((function, future))  # type: ignore[arg-type]
                self._change.notify()
                return future
        future.set_exception(closed())
        return future

    def _run(self) -> None:
        while True:
            with self._change:
                self._running = None
                while not self._work:
                    if self._is_closed:
                        return
                    self._change.wait()
                function, future = self._work.popleft()
                self._running = future
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del function, future  # what they hold is let go before the next wait, not after it


@contextmanager
def quick_switches() -> Iterator[None]:
    """Inside, whoever waits for the interpreter gets it after half a millisecond, and not after five.

    The event loop lets go of it with each read and write of a socket, and would else wait as long for the model's
    thread each time: a request that is refused took three times as long.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def closed() -> HttpError:
    """The error of what was sent to a model that is no longer there."""
    return HttpError(503, "this model was just unloaded, or the server is stopping; try again", retry_after=1)


def _log_failure(future: "Future[object]") -> None:
    if future.cancelled():
        return
    error = future.exception()
    if error is not None and not isinstance(error, HttpError):
        LOG.error("a call of the model failed", exc_info=error)
