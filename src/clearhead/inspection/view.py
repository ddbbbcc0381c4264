"""What every result can be: a page, rows of a table, a picture, plain data; and in a notebook a picture."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from clearhead.errors import UsageError
from clearhead.pages import document, fragment, printable

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a cell that begins so for a formula

Row = dict[str, object]


class View(ABC):
    """A result that shows itself. `title` and `verdict` are plain text."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What this is."""

    @property
    @abstractmethod
    def verdict(self) -> str:
        """The main thing that it says, in a sentence."""

    @abstractmethod
    def main(self) -> str:
        """The body of its page, as HTML in which every text went through `pages.text`."""

    @abstractmethod
    def rows(self) -> Sequence[Row]:
        """The numbers as a table: one dict per row, all with the same keys; `pandas.DataFrame` takes it."""

    @abstractmethod
    def as_dict(self) -> dict[str, object]:
        """The numbers as plain data, which `--json` prints."""

    def svg(self) -> str:
        """The picture, as one `<svg>` element that stands alone.

        Raises:
            UsageError: this result has no picture.
        """
        raise UsageError(f"there is no picture of {self.title}; write a report or a CSV instead")

    @property
    def style(self) -> str:
        """CSS rules of its own, behind those that all pages share."""
        return ""

    @property
    def scripts(self) -> Sequence[str]:
        """JavaScript of its page; without it everything must be readable, too."""
        return ()

    def data(self) -> Mapping[str, object] | None:
        """What the scripts read."""
        return None

    def html(self) -> str:
        """A whole page, complete in itself."""
        return document(self.title, self.verdict, self.main(), style=self.style, scripts=self.scripts, data=self.data())

    def csv(self) -> str:
        """The rows with a header; a cell that a spreadsheet would take for a formula begins with an apostrophe."""
        rows, text = self.rows(), io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(rows[0] if rows else ())
        writer.writerows([_cell(value) for value in row.values()] for row in rows)
        return text.getvalue()

    def __str__(self) -> str:
        return f"{self.title}. {self.verdict}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return fragment(self.title, self.verdict, self.main(), style=self.style)


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else value
    return "'" * value.startswith(FORMULA) + printable(value)
