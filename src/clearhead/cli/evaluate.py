"""clearhead evaluate"""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser, one_of, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.output import notice
from clearhead.config import TranslationConfig

if TYPE_CHECKING:
    pass


def parser() -> Parser:
    """What `clearhead evaluate` understands."""
    parser = Parser(
        "evaluate",
        "Measure how well a run predicts a text or translates. The batch size does not change the figures.",
        [
            ("clearhead evaluate", "the newest run, on its held-out data"),
            ("clearhead evaluate runs/a other.txt", "on another text"),
            ("clearhead evaluate runs/b --source t.de --target t.en", "BLEU, chrF and loss of a translator"),
        ],
    )
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the newest)")
    parser.add_argument(
        "text",
        nargs="?",
        help="a text or sentence pairs, as in train, or a split of a corpus, such as pairs:unseen "
        "(default: the held-out data)",
    )
    parser.add_argument(
        "--source",
        dest="source_file",
        metavar="FILE",
        help="same as the positional text; with --target: the sentences to translate",
    )
    parser.add_argument("--target", metavar="FILE", help="the reference translations, line by line")
    parser.add_argument("--device", help="auto, cpu, cuda, mps")
    parser.add_options(TranslationConfig, "beam search (--batch-size applies to texts as well)")
    return parser


def run(args: argparse.Namespace) -> None:
    """Evaluate and print the figures."""
    load_workflow("evaluate")
    from clearhead import workflows

    args.run, args.text = workflows.run_and_text(getattr(args, "run", None), getattr(args, "text", None))
    if args.text is None:
        del args.text
    score = workflows.evaluate(
        implied_run(args.run),
        one_of(args, "text", "source_file"),
        getattr(args, "target", None),
        options=settings_of(args, TranslationConfig),
        device=getattr(args, "device", "auto"),
        on_notice=notice,
    )
    console = Console(json=args.json)
    for line in str(score).splitlines():
        console.say(line, "bold" if line.startswith("BLEU ") else "")
    figures = asdict(score)
    del figures["grammar"]
    if score.grammar is not None:
        figures |= score.grammar.shares()
    console.result(figures)
