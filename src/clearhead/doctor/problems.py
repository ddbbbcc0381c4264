"""Calling a stranger's code, and what it raised."""

from typing import Self


def message_of(error: BaseException, length: int = 160) -> str:
    """What it says, in one line of at most so many characters."""
    return " ".join(str(error).split())[:length]


def sentence_of(error: BaseException, length: int = 160) -> str:
    """The same behind its class."""
    return f"{type(error).__name__}: {message_of(error, length)}"


class attempt:  # noqa: N801 - used as a context manager
    """Goes on after whatever a stranger's code raises, and keeps it.

    That may be anything: models are called here in ways that nobody called them before. This is the one place that
    catches it. What comes behind must not read it as health: it tries another way, leaves a question open, or says so.

    `error`: what was raised, without its frames, which would keep their tensors; None if all of it was run.
    """

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> bool:
        if isinstance(error, Exception):
            self.error = error.with_traceback(None)
        return self.failed

    @property
    def failed(self) -> bool:
        """Whether anything was raised."""
        return self.error is not None

    @property
    def kind(self) -> str:
        """The name of what was raised."""
        return type(self.error).__name__

    def sentence(self, length: int = 160) -> str:
        """What was raised, see `sentence_of`."""
        assert self.error is not None
        return sentence_of(self.error, length)
