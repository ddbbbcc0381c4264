"""clearhead doctor loss FILE.py:FUNCTION"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number
from clearhead.errors import FaultError, UsageError
from clearhead.workflows import examine_loss


def examine(console: Console, arguments: argparse.Namespace, target: str | None) -> int:
    """X-ray a loss function and print; 4 where it asks for what cannot be meant."""
    if target is None:
        raise UsageError("whose loss? 'clearhead doctor loss mylosses.py:compute'")
    values = examine_loss(target, seed=int(number(arguments, "seed", 0)), timeout=number(arguments, "timeout", TIMEOUT))
    for line in values.pop("lines"):
        console.say(line)
    console.result(values)
    return FaultError.exit_code if values["verdict"] == "faulty" else 0
