"""clearhead ablate"""

import argparse
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.views import add_view_options, write_views

if TYPE_CHECKING:
    from clearhead.inspection import AblationTable


def parser() -> Parser:
    """What `clearhead ablate` understands."""
    parser = Parser(
        "ablate",
        "Measure what each part of a model is worth: the loss without each head, attention, feed-forward and block.",
        [
            ("clearhead ablate", "the newest run, on its held-out data"),
            ("clearhead ablate runs/a --text other.txt --mean", "on another text; parts write their mean, not zero"),
            ("clearhead ablate runs/a --report ablation.html --svg ablation.svg", "as a page and as a picture"),
        ],
    )
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the newest)")
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="a text or sentence pairs, as in train, or a split of a corpus, such as pairs:unseen "
        "(default: the held-out data)",
    )
    parser.add_argument("--mean", action="store_true", help="put the mean of what a part writes in its place, not zero")
    parser.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="predict about N tokens, spread over the text (default: as many as take half a minute on two cores)",
    )
    parser.add_argument("--device", help="auto, cpu, cuda, mps")
    add_view_options(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    """Ablate, and print the changes layer by layer."""
    load_workflow("ablate")
    from clearhead import workflows

    which = implied_run(getattr(args, "run", None))
    console = Console(json=args.json)
    with console.progress("ablating") as advance:
        table = workflows.ablate(
            which,
            getattr(args, "text", None),
            mean="mean" in args,
            tokens=getattr(args, "tokens", None),
            device=getattr(args, "device", "auto"),
            on_progress=advance,
        )
    _show(table, console)
    write_views(args, table, console)
    console.result(table.as_dict())


def _show(table: "AblationTable", console: Console) -> None:
    console.say(f"change of the loss where a part writes {table.replacement}, in nats per token:")
    for grid in table.grids():
        width, column = max(map(len, grid.rows)), max(map(len, grid.columns))
        console.say("")
        console.say(" " * width + "".join(f"  {name:>{column}}" for name in grid.columns), "bold")
        for name, changes in zip(grid.rows, grid.cells, strict=True):
            cells = (" " * column if change is None else f"{change:>+{column}.4f}" for change in changes)
            console.say(f"{name:<{width}}  {'  '.join(cells)}")
    console.say("")
    console.say(table.verdict, "bold")
