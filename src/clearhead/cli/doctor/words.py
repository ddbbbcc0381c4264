"""Words of the command line that stand for numbers and pairs."""

import argparse
import math

from clearhead import workflows
from clearhead.errors import UsageError

TIMEOUT = workflows.TIMEOUT  # seconds


def pairs(arguments: argparse.Namespace, name: str) -> dict[str, str]:
    """What --allow and --set were given.

    Raises:
        UsageError: a word without its equals sign.
    """
    match = {}
    for word in getattr(arguments, name, []):
        key, equals, value = word.partition("=")
        if not equals or not value:
            form = "ID=REASON" if name == "allow" else "KEY=VALUE"
            raise UsageError(f"--{name} takes {form}, not '{word}'")
        match[key] = value
    return match


def number(arguments: argparse.Namespace, name: str, default: float) -> float:
    """What --seed and --timeout were given.

    Raises:
        UsageError: no number, or one that cannot be meant.
    """
    word = getattr(arguments, name, default)
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    lowest = 0 if name == "seed" else 1e-3
    if not lowest <= value < 2**31 or (name == "seed" and value != int(value)):
        raise UsageError(f"--{name} takes a number from {lowest:g}, not '{word}'")
    return value
