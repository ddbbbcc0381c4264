"""What texts gain, on its way from the model's thread to the event loop: together where nobody waits for it."""

import asyncio
import threading
from collections.abc import Callable, Sequence

from clearhead.server.text_batch import TextStep


class Outbox:
    """Steps that the model's thread has published and the event loop has not handed out yet.

    To wake the loop and send an event costs as much as several tokens of a small model. So the steps of all texts are
    handed out together after some milliseconds, and those of a text as one. How a text begins, and that it ends, is
    handed out at once.
    """

    def __init__(self, deliver: Callable[[TextStep], None], seconds: float) -> None:
        """
        Args:
            deliver: called on the event loop's thread with what one text has gained; it raises nothing.
            seconds: between two times at which everything is handed out.
        """
        self._deliver, self._seconds, self._due = deliver, seconds, 0.0  # the last: by the loop's clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()  # of what follows, which both threads touch
        self._steps, self._urgent = dict[int, TextStep](), set[int]()  # by the text's key; whose cannot wait
        self._is_woken = self._has_timer = False  # whether the loop will look: at once, or when the time has come

    def open(self) -> None:
        """Hand out on the event loop that runs."""
        self._loop = asyncio.get_running_loop()

    def publish(self, steps: Sequence[TextStep]) -> None:
        """Hand steps to the event loop, which is woken for what cannot wait. On any thread.

        Raises:
            RuntimeError: the loop has ended.
        """
        with self._lock:
            for step in steps:
                earlier = self._steps.get(step.key)
                self._steps[step.key] = step if earlier is None else earlier.then(step)
                if step.is_urgent:
                    self._urgent.add(step.key)
            wakes = not self._is_woken and (bool(self._urgent) or not self._has_timer)
            self._is_woken |= wakes
        if wakes and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            self._is_woken = False
        self._hand_out()

    def _on_time(self) -> None:
        with self._lock:
            self._has_timer = False
        self._hand_out()

    def _hand_out(self) -> None:
        """Everything, if the time has come; else what cannot wait."""
        assert self._loop is not None
        now = self._loop.time()
        with self._lock:
            if now >= self._due:
                steps, self._steps, self._due = [*self._steps.values()], {}, now + self._seconds
            else:
                steps = [self._steps.pop(key) for key in self._urgent]
            self._urgent.clear()
            if (steps or self._steps) and not self._has_timer and self._seconds > 0:
                self._has_timer = True  # also where nothing waits yet: what comes by then need not wake anybody
                self._loop.call_at(self._due, self._on_time)
        for step in steps:
            self._deliver(step)
