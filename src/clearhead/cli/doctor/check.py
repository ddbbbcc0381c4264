"""clearhead doctor TARGET"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.symptoms import tell
from clearhead.cli.doctor.words import TIMEOUT, number, pairs
from clearhead.doctor.report.files import FORMS, refuse_unwritable, write
from clearhead.doctor.report.text import lines
from clearhead.workflows import Request, diagnose, examine


def check(console: Console, arguments: argparse.Namespace, target: str | None) -> int:
    """Examine, print and write, a symptom's verdict first; 4 where a fault was found, 3 where it cannot be told."""
    files = {form: getattr(arguments, form) for form in FORMS if hasattr(arguments, form)}
    refuse_unwritable(files)
    request, timeout = _request(target, arguments), number(arguments, "timeout", TIMEOUT)
    if hasattr(arguments, "symptom"):
        diagnosis = diagnose(arguments.symptom, request, timeout=timeout)
        tell(console, diagnosis)
        report, document = diagnosis.report, diagnosis.as_json()
    else:
        report = examine(request, timeout=timeout)
        document = report.as_json()
    for text, style in lines(report, verbose=hasattr(arguments, "verbose")):
        console.say(text, style)
    write(report, files)
    console.result(document)
    return report.exit_code


def _request(target: str | None, arguments: argparse.Namespace) -> Request:
    return Request(
        target=target,
        kind=None if getattr(arguments, "kind", "auto") == "auto" else arguments.kind,
        level=getattr(arguments, "level", "quick"),
        only=[id for word in getattr(arguments, "only", []) for id in word.split(",")],
        allow=pairs(arguments, "allow"),
        settings=pairs(arguments, "set"),
        seed=int(number(arguments, "seed", 0)),
        batch=getattr(arguments, "batch", None),
        device=getattr(arguments, "device", "cpu"),
    )
