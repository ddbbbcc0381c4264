"""Text that is piped into the command."""

import sys

from clearhead.errors import DataError


def standard_input(what: str) -> str:
    """All of standard input; `what` says what it is, for the sentence.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"the {what} on standard input is not UTF-8 at byte {error.start:,}") from None
