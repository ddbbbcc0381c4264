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
    from clearhead.workflows import Score, TranslationScore


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
    if isinstance(score, workflows.TranslationScore):
        _show_translation(console, score)
    else:
        _show(console, score)
    figures = asdict(score)
    del figures["grammar"]
    if score.grammar is not None:
        console.say(score.grammar.line())
        figures |= score.grammar.shares()
    console.result(figures)


def _show(console: Console, score: "Score") -> None:
    console.say(f"loss           {score.loss:.4f} nats per token")
    console.say(f"perplexity     {score.perplexity:.3f}")
    if score.bits_per_byte is not None:
        console.say(f"bits per byte  {score.bits_per_byte:.4f}")
    console.say(f"tokens         {score.tokens:,}")


def _show_translation(console: Console, score: "TranslationScore") -> None:
    console.say(f"BLEU       {score.bleu:.2f}", "bold")
    console.say(f"chrF       {score.chrf:.2f}")
    console.say(f"exact      {score.exact:.1%} of the translations equal the reference exactly")
    console.say(f"loss       {score.loss:.4f} nats per token")
    console.say(f"sentences  {score.sentences:,}")
    console.say(f"signature  {score.signature}")
    console.say("")
    console.say(f"{'source words':<14}{'sentences':>10}{'BLEU':>8}{'exact':>9}")
    for group in score.by_length:
        console.say(f"{group.length:<14}{group.sentences:>10,}{group.bleu:>8.2f}{group.exact:>9.1%}")
