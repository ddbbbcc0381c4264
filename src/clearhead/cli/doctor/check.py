"""clearhead doctor TARGET"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.symptoms import tell
from clearhead.cli.doctor.words import TIMEOUT, number, pairs
from clearhead.doctor.report.files import FORMS, refuse_unwritable, write
from clearhead.doctor.report.text import lines
from clearhead.workflows import Request, check_model, diagnose


def check(console: Console, given: argparse.Namespace, target: str | None) -> int:
    """Examine, print and write, a symptom's verdict first; 4 where a fault was found, 3 where it cannot be told."""
    files = {form: getattr(given, form) for form in FORMS if hasattr(given, form)}
    refuse_unwritable(files)
    request, timeout = _request(target, given), number(given, "timeout", TIMEOUT)
    if hasattr(given, "symptom"):
        diagnosis = diagnose(given.symptom, request, timeout=timeout)
        tell(console, diagnosis)
        report, told = diagnosis.report, diagnosis.as_json()
    else:
        report = check_model(request, timeout=timeout)
        told = report.as_json()
    for text, style in lines(report, verbose=hasattr(given, "verbose")):
        console.say(text, style)
    write(report, files)
    console.result(told)
    return report.exit_code


def _request(target: str | None, given: argparse.Namespace) -> Request:
    return Request(
        target=target,
        kind=None if getattr(given, "kind", "auto") == "auto" else given.kind,
        level=getattr(given, "level", "quick"),
        only=[id for word in getattr(given, "only", []) for id in word.split(",")],
        allow=pairs(given, "allow"),
        settings=pairs(given, "set"),
        seed=int(number(given, "seed", 0)),
        batch=getattr(given, "batch", None),
        device=getattr(given, "device", "cpu"),
    )
