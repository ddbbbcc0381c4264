"""clearhead doctor loss FILE.py:FUNCTION"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number, token
from clearhead.errors import FaultError, UsageError
from clearhead.workflows import examine_loss


def examine(console: Console, args: argparse.Namespace, target: str | None) -> int:
    """X-ray a loss function and print; 4 where it asks for what cannot be meant."""
    if target is None:
        raise UsageError("name a loss function: 'clearhead doctor loss mylosses.py:compute'")
    seed, timeout = int(number(args, "seed", 0)), number(args, "timeout", TIMEOUT)
    result = examine_loss(target, pad_id=token(args, "pad_id"), seed=seed, timeout=timeout)
    for line in result.pop("lines"):
        console.say(line)
    console.result(result)
    return FaultError.exit_code if result["verdict"] == "faulty" else 0
