"""clearhead doctor compare A B"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number, pairs
from clearhead.errors import FaultError, UsageError
from clearhead.workflows import compare_models


def compare(console: Console, args: argparse.Namespace, a: str | None) -> int:
    """Compare two models with equal weights and print; 4 where they differ."""
    others: list[str] = getattr(args, "words", [])
    if a is None or len(others) != 1:
        raise UsageError("compare takes two models, as in 'clearhead doctor compare mine.py:build hf:FOLDER'")
    comparison = compare_models(
        a,
        others[0],
        kind=None if getattr(args, "kind", "auto") == "auto" else args.kind,
        settings=pairs(args, "set"),
        seed=int(number(args, "seed", 0)),
        timeout=number(args, "timeout", TIMEOUT),
    )
    for text, style in comparison.lines(verbose=hasattr(args, "verbose")):
        console.say(text, style)
    console.result(comparison.as_json())
    return 0 if comparison.equal else FaultError.exit_code
