"""The lines of code that a finding points at. They are read, never run."""

from dataclasses import dataclass
from pathlib import Path

LARGEST = 2_000_000  # bytes; a larger file is not opened
AROUND = 2  # lines before and after


@dataclass(frozen=True)
class Excerpt:
    """Some lines of a file, the number of the first, and the number of the one that the finding is about."""

    first: int
    meant: int
    lines: tuple[str, ...]

    @property
    def line(self) -> str:
        """The one that the finding is about, without its indentation."""
        return self.lines[self.meant - self.first].strip()


def excerpt(file: str | None, line: int | None) -> Excerpt | None:
    """A line with those around it; None if there is none, or if the file cannot be read anymore."""
    if file is None or not line:
        return None
    path = Path(file)
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ValueError):  # a name that no file can have
        return None
    if not 1 <= line <= len(lines):
        return None
    first = max(1, line - AROUND)
    return Excerpt(first, line, tuple(text.rstrip("\r") for text in lines[first - 1 : line + AROUND]))
