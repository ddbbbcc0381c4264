"""clearhead fill"""

import argparse
import json

from clearhead.cli.arguments import Parser, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.output import notice
from clearhead.cli.standard_input import standard_input
from clearhead.config import FillConfig


def parser() -> Parser:
    """What `clearhead fill` understands."""
    parser = Parser(
        "fill",
        "Fill in the masked words of a text, one token for each [MASK]. Needs a run trained with --objective masked.",
        [
            ('clearhead fill "To be or not to [MASK]"', "fill in one word with the newest run"),
            ('clearhead fill runs/a "The [MASK] is [MASK]." --top-k 3', "show three candidates for each"),
        ],
    )
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the newest)")
    parser.add_argument("text", nargs="?", help="a text with at least one [MASK], or - for standard input")
    parser.add_argument("--device", help="auto, cpu, cuda, mps")
    parser.add_options(FillConfig, "output")
    return parser


def run(args: argparse.Namespace) -> None:
    """Fill in, and print the text and what else was likely."""
    load_workflow("fill")
    from clearhead import workflows

    which, text = workflows.run_and_text(getattr(args, "run", None), getattr(args, "text", None))
    if text == "-":
        text = standard_input("text").removesuffix("\n").removesuffix("\r")  # the end of a line that a shell puts there
    notices: list[str] = []  # said after the text
    filled = workflows.fill(
        implied_run(which),
        text or "",
        settings_of(args, FillConfig),
        device=getattr(args, "device", "auto"),
        on_notice=notices.append,
    )
    console = Console(json=args.json)
    console.text(filled.text)
    for number, candidates in enumerate(filled.masks, start=1):
        console.say(f"--- {number} ---", "bold")
        for candidate in candidates:
            console.say(f"{candidate.probability:6.1%}  {json.dumps(candidate.token, ensure_ascii=False)}")
    for sentence in notices:
        notice(sentence)
    masks = [[candidate._asdict() for candidate in candidates] for candidates in filled.masks]
    console.result({"text": text, "filled": filled.text, "masks": masks})
