"""Text that is piped into the command."""

import os
import select
import stat
import sys
import time
from contextlib import suppress

from clearhead.cli.output import notice
from clearhead.errors import DataError, UsageError

SOON = 1.0  # seconds within which a pipe that is not asked for must begin; torch has loaded for longer before
WHOLE = 10.0  # seconds within which it must end
MOST = 10_000_000  # bytes that it may bring


def is_typed() -> bool:
    """Whether a person sits before it."""
    return sys.stdin is not None and sys.stdin.isatty()


def standard_input(what: str) -> str:
    """All of standard input; `what` says what it is, for the sentence.

    Raises:
        DataError: it cannot be read, or is not UTF-8.
    """
    if sys.stdin is None:
        raise DataError(f"standard input is closed, so there is no {what} to read; pipe it in")
    try:
        return _decoded(sys.stdin.buffer.read(), what)
    except OSError as error:
        raise DataError(f"the {what} cannot be read from standard input ({error.strerror}); pipe it in") from None


def short_text(what: str) -> str:
    """All of standard input, without the end of the last line that a shell or an editor puts there."""
    return _without_end(standard_input(what))


def piped_text(what: str) -> str | None:
    """A text that is piped in where no argument is one; None where nothing is.

    Nobody asked for it, so it is never waited for: a service, a remote shell or a job in the background may have
    inherited a pipe into which nobody writes.

    Raises:
        DataError: it is not UTF-8.
        UsageError: it does not end.
    """
    try:
        handle = sys.stdin.fileno()
        kind = os.fstat(handle).st_mode
    except (AttributeError, OSError, ValueError):  # it is closed, or no file of the system
        return None
    if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return None
    content, start_time = bytearray(), time.monotonic()
    while True:
        left = start_time + (WHOLE if content else SOON) - time.monotonic()
        if not stat.S_ISREG(kind) and not _is_ready(handle, max(0.0, left)):
            break
        piece = os.read(handle, 1 << 16)
        if not piece:
            return _without_end(_decoded(bytes(content), what)) or None
        content += piece
        if len(content) > MOST:
            raise UsageError(f"standard input has more than {MOST:,} bytes; give - as the {what} to read all of it")
    if content:
        raise UsageError(f"standard input does not end; give - as the {what} to wait for it, or < {os.devnull}")
    notice(f"nothing comes from standard input, so it is left alone; give - as the {what} to wait for it")
    return None


def _is_ready(handle: int, seconds: float) -> bool:
    """Whether there is something to read, or the end, within so many seconds; not known of a pipe on Windows."""
    with suppress(OSError):
        return bool(select.select([handle], [], [], seconds)[0])
    return False


def _decoded(content: bytes, what: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"the {what} on standard input is not UTF-8 at byte {error.start:,}") from None


def _without_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
