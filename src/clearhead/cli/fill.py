"""clearhead fill"""

import argparse
import json

from clearhead.cli.arguments import Parser, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.output import notice
from clearhead.cli.run_and_text import add_run_and_text, run_and_text
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
    about = "a text with at least one [MASK], or - for standard input (default: what is piped in)"
    add_run_and_text(parser, "text", about)
    parser.add_argument("--device", help="auto, cpu, cuda, mps")
    parser.add_options(FillConfig, "output")
    return parser


def run(args: argparse.Namespace) -> None:
    """Fill in, and print the text and what else was likely."""
    load_workflow("fill")
    from clearhead import workflows

    which, text = run_and_text(args, "fill", "text")
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
