"""clearhead trace"""

import argparse

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number, pairs
from clearhead.cli.environment import load_workflow
from clearhead.cli.output import notice
from clearhead.cli.views import add_view_options, write_views
from clearhead.errors import UsageError

MOST_DIGITS = 9


def parser() -> Parser:
    """What `clearhead trace` understands."""
    parser = Parser(
        "trace",
        "List every step of one forward pass: module, operation, shape by symbols, bytes, parameters, calling line.",
        [
            ('clearhead trace "To be"', "what the newest run does with this text"),
            ("clearhead trace mymodel.py:build", "any PyTorch model, without an adapter; also hf:NAME or hf:FOLDER"),
        ],
    )
    parser.add_argument(
        "target",
        nargs="?",
        help="file.py:build, package.module:build, hf:NAME, hf:FOLDER or a run (default: the newest run)",
    )
    parser.add_argument("text", nargs="?", help="what a run reads (default: as many tokens as it takes)")
    parser.add_argument(
        "--preset", metavar="NAME", help="trace a preset instead of a run; nothing of its size is built"
    )
    parser.add_argument("--tokens", metavar="N", help="how many tokens, where a run or a preset has no text to read")
    parser.add_argument("--all", action="store_true", default=False, help="list blocks that are the same, too")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", help="a config value for hf:NAME")
    parser.add_argument("--timeout", metavar="SECONDS", help="for a model that is no run (default: 300)")
    add_view_options(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    """Trace, print the table and write the files."""
    load_workflow("trace")
    from clearhead import workflows
    from clearhead.inspection.steps.lines import table_lines

    preset = getattr(args, "preset", None)
    target, text = workflows.target_and_text(getattr(args, "target", None), getattr(args, "text", None))
    if target is None and preset is None:
        target = workflows.resolve(None).location
        notice(f"using {target}, the newest run")
    table = workflows.trace(
        target,
        text,
        preset=preset,
        tokens=_whole(args.tokens) if "tokens" in args else None,
        settings=pairs(args, "set"),
        timeout=number(args, "timeout", TIMEOUT),
        on_notice=notice,
    )
    console = Console(json=args.json)
    if not args.json:
        for line, style in table_lines(table, fold=not args.all, width=console.width):
            console.say(line, style)
        console.say("")
        console.say(table.verdict, "bold")
    write_views(args, table, console)
    console.result(table.as_dict())


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > MOST_DIGITS:
        raise UsageError(f"--tokens takes a whole number, not '{text}'")
    return int(text)
