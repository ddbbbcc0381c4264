"""What the verbs that look into a model have in common: a page, a table, a picture, written where asked."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.errors import ClearheadError
from clearhead.files import write_text

if TYPE_CHECKING:
    from clearhead.inspection import View

FILES = {
    "report": ("FILE.html", "write a page to this file, complete in itself"),
    "csv": ("FILE.csv", "write the numbers to this file, as a table"),
    "svg": ("FILE.svg", "write the picture to this file"),
}


def add_view_options(parser: Parser, *, svg: bool = True) -> None:
    """--report, --csv and, where there is a picture, --svg."""
    group = parser.add_argument_group("files")
    for name, (metavar, about) in FILES.items():
        if svg or name != "svg":
            group.add_argument(f"--{name}", metavar=metavar, help=about)


def write_views(args: argparse.Namespace, view: "View", console: Console) -> None:
    """Write the files that were asked for, and say where they are.

    Raises:
        ClearheadError: a file cannot be written.
    """
    contents: dict[str, Callable[[], str]] = {"report": view.html, "csv": view.csv, "svg": view.svg}
    for name, content in contents.items():
        if name in args:
            path = Path(getattr(args, name))
            _write(path, content())
            console.say(f"wrote {path}")


def _write(path: Path, content: str) -> None:
    try:
        write_text(path, content)
    except OSError as error:
        raise ClearheadError(f"cannot write {path} ({error.strerror or error}); name another file") from None
