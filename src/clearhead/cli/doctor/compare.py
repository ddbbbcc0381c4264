"""clearhead doctor compare A B"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number, pairs
from clearhead.errors import FaultError, UsageError
from clearhead.workflows import compare_models


def compare(console: Console, arguments: argparse.Namespace, a: str | None) -> int:
    """Compare two models with equal weights and print; 4 where they differ."""
    words: list[str] = getattr(arguments, "words", [])
    if a is None or len(words) != 1:
        raise UsageError("compare takes two models, as in 'clearhead doctor compare mine.py:build hf:FOLDER'")
    match = compare_models(
        a,
        words[0],
        kind=None if getattr(arguments, "kind", "auto") == "auto" else arguments.kind,
        settings=pairs(arguments, "set"),
        seed=int(number(arguments, "seed", 0)),
        timeout=number(arguments, "timeout", TIMEOUT),
    )
    for text, style in match.lines(verbose=hasattr(arguments, "verbose")):
        console.say(text, style)
    console.result(match.as_json())
    return 0 if match.equal else FaultError.exit_code
