"""clearhead doctor compare A B"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number, pairs
from clearhead.errors import FaultError, UsageError
from clearhead.workflows import compare_models


def compare(console: Console, given: argparse.Namespace, a: str | None) -> int:
    """Compare two models with equal weights and print; 4 where they differ."""
    words: list[str] = getattr(given, "words", [])
    if a is None or len(words) != 1:
        raise UsageError("compare takes two models, as in 'clearhead doctor compare mine.py:build hf:FOLDER'")
    found = compare_models(
        a,
        words[0],
        kind=None if getattr(given, "kind", "auto") == "auto" else given.kind,
        settings=pairs(given, "set"),
        seed=int(number(given, "seed", 0)),
        timeout=number(given, "timeout", TIMEOUT),
    )
    for text, style in found.lines(verbose=hasattr(given, "verbose")):
        console.say(text, style)
    console.result(found.as_json())
    return 0 if found.equal else FaultError.exit_code
