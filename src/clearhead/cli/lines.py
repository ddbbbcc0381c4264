"""What a pipe, a file or another program is shown: plain lines."""

import os
import shutil
from typing import IO, TextIO


class Lines:
    """Shows the texts without their styles, and no bar."""

    has_bar = False

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.width, self.encoding = shutil.get_terminal_size().columns, file.encoding or "utf-8"

    def show(self, *pieces: tuple[str, str]) -> None:
        """One line of texts, each of which has a style for where there is a terminal."""
        try:
            print(*(text for text, _ in pieces), sep="", file=self.file, flush=True)
        except BrokenPipeError:
            nobody_reads(self.file)
            raise

    def begin(self, step: int, steps: int) -> None:
        """A training begins."""

    def advance(self, step: int, news: str) -> None:
        """It has come so far."""

    def end(self) -> None:
        """It is over."""


def nobody_reads(file: IO[str]) -> None:
    """What is still printed goes nowhere, instead of failing again at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def is_styled(file: TextIO) -> bool:
    """Whether it is a terminal, or is to be treated as one, as rich understands these two variables."""
    return file.isatty() or bool(os.environ.get("FORCE_COLOR")) or os.environ.get("TTY_COMPATIBLE") == "1"
