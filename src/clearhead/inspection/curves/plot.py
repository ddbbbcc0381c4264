"""A training curve that shows itself wherever Python shows values."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from clearhead.files import write_text
from clearhead.inspection.curves.curve import Curve
from clearhead.inspection.curves.svg import picture
from clearhead.inspection.curves.terminal import draw
from clearhead.pages import one_line

WIDEST = 100  # columns


@dataclass(frozen=True, repr=False)
class LossPlot:
    """The losses of a training: a picture in a notebook, text where it is printed."""

    curve: Curve
    title: str = "Training curve"

    def _repr_svg_(self) -> str:
        """What a notebook shows."""
        return picture(self.curve, title=one_line(self.title))

    def __repr__(self) -> str:
        width = min(shutil.get_terminal_size().columns, WIDEST)
        return draw(self.curve, width=width, encoding=getattr(sys.stdout, "encoding", None) or "utf-8")

    def save(self, path: str | Path) -> None:
        """Write the picture to an SVG file."""
        write_text(Path(path), self._repr_svg_())
