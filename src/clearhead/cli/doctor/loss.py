"""clearhead doctor loss FILE.py:FUNCTION"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number
from clearhead.doctor.apart import Request, examine_apart
from clearhead.errors import FaultError, UsageError


def examine(console: Console, given: argparse.Namespace, target: str | None) -> int:
    """X-ray a loss function and print; 4 where it asks for what cannot be meant."""
    if target is None:
        raise UsageError("whose loss? 'clearhead doctor loss mylosses.py:compute'")
    request = Request(target, task="loss", seed=int(number(given, "seed", 0)))
    told = examine_apart(request, timeout=number(given, "timeout", TIMEOUT))
    for line in told.pop("lines"):
        console.say(line)
    console.result(told)
    return FaultError.exit_code if told["verdict"] == "faulty" else 0
