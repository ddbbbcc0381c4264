"""A connection to which what is written within one turn of the event loop is sent at once."""

import asyncio
from typing import Any

LARGE = 64 * 1024  # bytes that do not wait for the end of the turn


class GatheredTransport:
    """A transport that sends the head of an answer together with its body, and events that come up together as well.

    Each send lets other threads take the interpreter, and gets it back when they let go of it: beside a model's thread
    that costs more than the system's call.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """
        Args:
            transport: which sends; whatever is not written here is its own.
            loop: that it is used in.
        """
        self._transport, self._loop = transport, loop
        self._parts, self._size = list[bytes](), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this, before the turn ends."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > LARGE:
            self.flush()

    def flush(self) -> None:
        """Send what has been written."""
        if self._parts:
            content, self._parts, self._size = b"".join(self._parts), [], 0
            if content:
                self._transport.write(content)

    def close(self) -> None:
        """Send what has been written, and close."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close without sending it."""
        self._parts, self._size = [], 0
        self._transport.abort()
