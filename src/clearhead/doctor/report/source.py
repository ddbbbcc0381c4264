"""The lines of code that a finding points at. They are read, never run."""

from dataclasses import dataclass
from pathlib import Path

from clearhead.doctor.report.findings import Where

LARGEST = 2_000_000  # bytes of a file that is looked into
AROUND = 2  # lines before and behind


@dataclass(frozen=True)
class Excerpt:
    """Some lines of a file: the number of the first, and the number of the one that is meant."""

    first: int
    meant: int
    lines: tuple[str, ...]

    @property
    def line(self) -> str:
        """The one that is meant, without its indentation."""
        return self.lines[self.meant - self.first].strip()


def excerpt(where: Where, around: int = AROUND) -> Excerpt | None:
    """The line of a finding and those around it; None if it has none, or the file cannot be read any more."""
    if where.file is None or not where.line:
        return None
    path = Path(where.file)
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ValueError):  # a name that no file can have
        return None
    if not 1 <= where.line <= len(lines):
        return None
    first = max(1, where.line - around)
    return Excerpt(first, where.line, tuple(line.rstrip("\r") for line in lines[first - 1 : where.line + around]))
