"""What the verbs that look into a model have in common: a page, a table, a picture, written where asked."""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.implied_run import implied_run
from clearhead.cli.run_and_text import add_run_and_text, run_and_text
from clearhead.errors import ClearheadError
from clearhead.files import write_text

if TYPE_CHECKING:
    from clearhead.inspection import View

FILES = {
    "report": ("FILE.html", "write a page to this file, complete in itself"),
    "csv": ("FILE.csv", "write the numbers to this file, as a table"),
    "svg": ("FILE.svg", "write the picture to this file"),
}


def add_prompt_options(parser: Parser) -> None:
    """A run, a text that it reads, a translation to look at, and where to compute."""
    add_run_and_text(parser, "text", "what the model reads, or - for standard input (default: what is piped in)")
    parser.add_argument("--target", metavar="TEXT", help="a translation to look at (default: the model's own)")
    parser.add_argument("--device", help="auto, cpu, cuda, mps")


def run_and_prompt(args: argparse.Namespace, verb: str) -> tuple[str, str]:
    """The run, the newest where none is named, and the text for it."""
    which, text = run_and_text(args, verb, "text")
    return implied_run(which), text or ""


def add_view_options(parser: Parser, *, svg: bool = True) -> None:
    """--report, --csv and, where there is a picture, --svg."""
    group = parser.add_argument_group("files")
    for name, (metavar, about) in FILES.items():
        if svg or name != "svg":
            group.add_argument(f"--{name}", metavar=metavar, type=partial(_file, metavar), help=about)


def _file(metavar: str, name: str) -> Path:
    """The file that a person names, where it can be written to, which is known before the work; links are followed.

    What exists and is something else stays: a folder, a device, a pipe, a file with another ending.
    """
    path, ending = Path(os.path.realpath(name)), Path(metavar).suffix
    if name == "-":
        raise argparse.ArgumentTypeError("must be a file; --json writes to standard output")
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"must be a file, and {name} is {'a folder' if path.is_dir() else 'a device'}")
    if path.exists() and path.suffix.lower() != ending:
        raise argparse.ArgumentTypeError(f"would replace {name}, which is no {ending} file; name another one")
    if not os.access(path.parent, os.W_OK):
        why = "cannot be written to" if path.parent.is_dir() else "is not there"
        raise argparse.ArgumentTypeError(f"cannot be written: the folder {path.parent} {why}")
    return Path(name)


def write_views(args: argparse.Namespace, view: "View", console: Console) -> None:
    """Write the files that were asked for, and say where they are.

    Raises:
        ClearheadError: a file cannot be written.
    """
    contents: dict[str, Callable[[], str]] = {"report": view.html, "csv": view.csv, "svg": view.svg}
    for name, content in contents.items():
        if name in args:
            path: Path = getattr(args, name)
            _write(path, content())
            console.say(f"wrote {path}")


def _write(path: Path, content: str) -> None:
    try:
        write_text(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise ClearheadError(f"cannot write {path} ({error.strerror or error}); name another file") from None
