"""clearhead compare"""

import argparse
from collections.abc import Mapping, Sequence

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.pages import one_line

DIFFERENCES = "options that differ"


def parser() -> Parser:
    """What `clearhead compare` understands."""
    parser = Parser(
        "compare",
        "Compare trainings: figures, options that differ, and a page with their curves and samples.",
        [
            ("clearhead compare", "the two newest runs"),
            ("clearhead compare runs/a runs/b runs/c", "any number of them"),
        ],
    )
    parser.add_argument("runs", nargs="*", help="folders or names of at least two runs (default: the two newest)")
    parser.add_argument("--out", help="where the page is written (default: runs/compare.html)")
    return parser


def run(args: argparse.Namespace) -> None:
    """Compare, and print the figures and the options that differ."""
    load_workflow("compare_runs")
    from clearhead import workflows

    console = Console(json=args.json)
    compared = workflows.compare_runs(*getattr(args, "runs", ()), out=getattr(args, "out", None))
    facts = {name: [fact.get(name, "-") for fact in compared.facts] for fact in compared.facts for name in fact}
    options = {
        name: ["none" if value is None else str(value) for value in values] for name, values in compared.options.items()
    }
    tables = [_table(title, compared.names, rows) for title, rows in (("figures", facts), (DIFFERENCES, options))]
    widths = [max(map(len, column)) for column in zip(*(row for table in tables for row in table), strict=True)]
    for header, *rows in tables:
        console.say(_line(header, widths), "bold")
        for row in rows:
            console.say(_line(row, widths))
        console.say("")
    console.say(compared.verdict, "bold")
    console.say(f"The curves and samples are in {compared.page}.")
    console.result(
        {
            "runs": [{"name": name, **figures} for name, figures in zip(compared.names, compared.figures, strict=True)],
            "options": compared.options,
            "verdict": compared.verdict,
            "page": str(compared.page),
        }
    )


def _table(title: str, names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """A header with the runs' names, and the rows below it."""
    table = [(title, *names), *((name, *values) for name, values in rows.items())]
    return [[one_line(cell) for cell in row] for row in table]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    return first.ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
