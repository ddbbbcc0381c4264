"""Words of the command line that stand for numbers and pairs."""

import argparse
import math

from clearhead import workflows
from clearhead.errors import UsageError

TIMEOUT = workflows.TIMEOUT  # seconds


def pairs(args: argparse.Namespace, name: str) -> dict[str, str]:
    """The pairs of --allow or --set.

    Raises:
        UsageError: an argument without its equals sign.
    """
    values = {}
    for word in getattr(args, name, []):
        key, equals, value = word.partition("=")
        if not equals or not value:
            form = "ID=REASON" if name == "allow" else "KEY=VALUE"
            raise UsageError(f"--{name} takes {form}, not '{word}'")
        values[key] = value
    return values


def number(args: argparse.Namespace, name: str, default: float) -> float:
    """The number of --seed, --timeout or --pad-id.

    Raises:
        UsageError: no number, or one that makes no sense.
    """
    word = getattr(args, name, default)
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    lowest = 1e-3 if name == "timeout" else 0
    if not lowest <= value < 2**31 or (name != "timeout" and value != int(value)):
        raise UsageError(f"--{name.replace('_', '-')} takes a number from {lowest:g}, not '{word}'")
    return value


def token(args: argparse.Namespace, name: str) -> int | None:
    """The token of --pad-id, if it was given.

    Raises:
        UsageError: it is no whole number from 0.
    """
    return int(number(args, name, 0)) if hasattr(args, name) else None
