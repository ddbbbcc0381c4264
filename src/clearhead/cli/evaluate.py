"""clearhead evaluate"""

import argparse
from dataclasses import asdict

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console


def parser() -> Parser:
    """What `clearhead evaluate` understands."""
    parser = Parser(
        "evaluate",
        "Measure how well a run predicts a text. The figures do not depend on the batch size.",
        [
            ("clearhead evaluate", "the newest run, on the text that it held out"),
            ("clearhead evaluate runs/a other.txt", "on another text"),
        ],
    )
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the newest)")
    parser.add_argument("source", nargs="?", help="a text as in train (default: what the run held out)")
    parser.add_argument("--batch-size", type=int, help="windows at once")
    parser.add_argument("--device", help="auto, cpu, cuda, mps")
    return parser


def run(given: argparse.Namespace) -> None:
    """Evaluate and print the figures."""
    from clearhead import workflows  # loads torch

    which, source = workflows.run_and_text(getattr(given, "run", None), getattr(given, "source", None))
    score = workflows.evaluate(
        which, source, batch_size=getattr(given, "batch_size", None), device=getattr(given, "device", "auto")
    )
    console = Console(json=given.json)
    console.say(f"loss           {score.loss:.4f} nats per token")
    console.say(f"perplexity     {score.perplexity:.3f}")
    console.say(f"bits per byte  {score.bits_per_byte:.4f}")
    console.say(f"tokens         {score.tokens:,}")
    console.result(asdict(score))
