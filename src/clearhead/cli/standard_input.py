"""Text that is piped into the command."""

import sys

from clearhead.errors import DataError


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
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"the {what} on standard input is not UTF-8 at byte {error.start:,}") from None
    except OSError as error:
        raise DataError(f"the {what} cannot be read from standard input ({error.strerror}); pipe it in") from None
