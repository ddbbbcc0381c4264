"""clearhead compare"""

import argparse

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.pages import one_line


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
    compared = workflows.compare_runs(getattr(args, "runs", ()), out=getattr(args, "out", None))
    facts = {name: [fact.get(name, "-") for fact in compared.facts] for fact in compared.facts for name in fact}
    options = {name: [str(value) for value in values] for name, values in compared.options.items()}
    widths = [max(20, *(len(one_line(name)) for name in (*facts, *options)))]
    for column, name in enumerate(compared.names):
        widths.append(
            max(len(one_line(text)) for text in (name, *(row[column] for row in (*facts.values(), *options.values()))))
        )
    for title, rows in (("figures", facts), ("options that differ", options)):
        console.say(_row([title, *compared.names], widths), "bold")
        for name, values in rows.items():
            console.say(_row([name, *values], widths))
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


def _row(cells: list[str], widths: list[int]) -> str:
    first, *rest = map(one_line, cells)
    return f"{first:<{widths[0]}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
