"""clearhead doctor loss FILE.py:FUNCTION"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number
from clearhead.errors import FaultError, UsageError
from clearhead.workflows import examine_loss


def examine(console: Console, args: argparse.Namespace, target: str | None) -> int:
    """X-ray a loss function and print; 4 where it asks for what cannot be meant."""
    if target is None:
        raise UsageError("name a loss function: 'clearhead doctor loss mylosses.py:compute'")
    result = examine_loss(target, seed=int(number(args, "seed", 0)), timeout=number(args, "timeout", TIMEOUT))
    for line in result.pop("lines"):
        console.say(line)
    console.result(result)
    return FaultError.exit_code if result["verdict"] == "faulty" else 0
