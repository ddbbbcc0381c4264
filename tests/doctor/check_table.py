"""The tables of checks in docs/doctor.md, from the checks themselves.

python tests/doctor/check_table.py --keep    # writes them into the page
"""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clearhead.doctor.checks import CHECKS
from clearhead.doctor.checks.base import Check
from clearhead.doctor.training.checks import TRAINING_CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
TABLE = re.compile(r"\| check \| what holds if it passes \| ids \|\n\|---\|---\|---\|\n(?:\|.*\n)*")


def table(checks: Iterable[Check[Any]]) -> str:
    """A row for each check, in the order in which they are made."""
    rows = [f"| {_named(check)} | {check.holds} | {' '.join(check.covers)} |" for check in checks]
    return "\n".join(["| check | what holds if it passes | ids |", "|---|---|---|", *rows, ""])


def _named(check: Check[Any]) -> str:
    return check.name if check.level == "quick" else f"{check.name} ({check.level})"


def with_tables(page: str) -> str:
    """The page with both tables as they should be."""
    tables = iter([table(CHECKS), table(TRAINING_CHECKS)])
    return TABLE.sub(lambda _: next(tables), page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="write them into docs/doctor.md")
    if parser.parse_args().keep:
        PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table(CHECKS), table(TRAINING_CHECKS), sep="\n")
