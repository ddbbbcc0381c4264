"""The command line and the page that the programs of this folder have in common."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def arguments(about: str | None, results: Path) -> argparse.ArgumentParser:
    """A parser that tells the program's own text, and knows --keep."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help=f"write the tables to {results.name}")
    return parser


def publish(title: str, page: Sequence[str], results: Path, *, keep: bool) -> None:
    """Print the lines of a page; where it is to be kept, write it under its title."""
    print("\n".join(page))
    if keep:
        results.parent.mkdir(exist_ok=True)
        results.write_text("\n".join([f"# {title}\n", *page, ""]), encoding="utf-8")
