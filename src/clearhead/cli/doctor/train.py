"""clearhead doctor train SCRIPT.py -- WORDS"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number, pairs
from clearhead.doctor.catalogue.faults import refuse_unknown
from clearhead.doctor.isolated import Request, examine_isolated
from clearhead.doctor.report.report import Report
from clearhead.errors import UsageError

OF_A_MODEL = ("kind", "level", "only", "set", "pad_id")  # options that say nothing about a training


def train(console: Console, args: argparse.Namespace, script: str | None) -> int:
    """Run a training script for two steps, watched, and print; 4 where a fault was found."""
    if script is None:
        raise UsageError("name a training script: 'clearhead doctor train train.py -- --any --args'")
    wrong = next((name for name in OF_A_MODEL if hasattr(args, name)), None)
    if wrong:
        raise UsageError(f"--{wrong} is for the examination of a model; what the script is to know comes after '--'")
    allow = pairs(args, "allow")
    refuse_unknown(None, "quick", allow)
    request = Request(
        script, task="train", allow=allow, arguments=getattr(args, "words", []), seed=int(number(args, "seed", 0))
    )
    report = Report.from_json(examine_isolated(request, timeout=number(args, "timeout", TIMEOUT)))
    for text, style in report.lines(verbose=hasattr(args, "verbose")):
        console.say(text, style)
    console.result(report.as_json())
    return report.exit_code
