"""clearhead attend"""

import argparse

from clearhead.cli.arguments import Parser, whole_number
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.output import notice
from clearhead.cli.views import add_prompt_options, add_view_options, run_and_prompt, write_views


def parser() -> Parser:
    """What `clearhead attend` understands."""
    parser = Parser(
        "attend",
        "Show where each head of a model looks when it reads a text: all heads at a glance, or one as a map.",
        [
            ('clearhead attend "Once upon a time" --report heads.html', "every head of the newest run, as a page"),
            ('clearhead attend runs/a "Once upon a time" --layer 1 --head 0', "one head, as a map in the terminal"),
            ('clearhead attend runs/de-en "Ein Mann schläft."', "where a translation looks in its source"),
        ],
    )
    add_prompt_options(parser)
    parser.add_argument("--layer", type=whole_number, metavar="N", help="with --head: this layer, counted from 0")
    parser.add_argument("--head", type=whole_number, metavar="N", help="with --layer: this head, counted from 0")
    parser.add_argument(
        "--of",
        choices=("self", "cross", "encoder"),
        help="which attention (default: a translator's cross-attention, else self)",
    )
    add_view_options(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    """Attend, and print a table of the heads or the map of one."""
    load_workflow("attend")
    from clearhead import workflows
    from clearhead.inspection.attention.terminal import head_table, heat_map

    options = {name: getattr(args, name) for name in ("target", "of", "layer", "head", "device") if name in args}
    view = workflows.attend(*run_and_prompt(args, "attend"), **options, on_notice=notice)
    console = Console(json=args.json)
    console.say(view.title, "bold")
    console.say(view.verdict)
    console.say("")
    lines = head_table(view) if view.is_overview else heat_map(view, *console.canvas)
    for line in lines:
        console.line(*line)
    write_views(args, view, console)
    console.result(view.as_dict())
