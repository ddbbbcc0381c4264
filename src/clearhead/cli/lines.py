"""What a pipe, a file or another program is shown: plain lines."""

import shutil

from clearhead.cli.output import Output
from clearhead.pages import printable


class Lines:
    """Shows the texts without their styles, and no bar."""

    rewrites = has_bar = False
    has_hues = False

    def __init__(self, out: Output) -> None:
        self.out = out
        self.width, self.encoding = shutil.get_terminal_size().columns, out.encoding

    def line(self, *pieces: tuple[str, str]) -> None:
        """One line of texts, each of which has a style for where there is a terminal."""
        self.out.line("".join(text for text, _ in pieces))

    def block(self, text: str, style: str = "") -> None:
        """A text of several lines."""
        self.out.write(printable(text) + "\n")
        self.out.flush()

    def passing(self, text: str) -> None:
        """A line that stays, where none can be replaced."""
        self.line((text, ""))

    def begin(self, step: int, steps: int) -> None:
        """A training begins."""

    def advance(self, step: int, news: str) -> None:
        """It has come so far."""

    def set_steps(self, steps: int) -> None:
        """There will be this many steps."""

    def end(self) -> None:
        """It is over."""
