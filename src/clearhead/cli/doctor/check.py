"""clearhead doctor TARGET"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.symptoms import tell
from clearhead.cli.doctor.words import TIMEOUT, number, pairs, token
from clearhead.cli.output import notice
from clearhead.doctor.report.files import FORMS, refuse_unwritable, write
from clearhead.workflows import Request, check_model, diagnose, resolve


def check(console: Console, args: argparse.Namespace, target: str | None) -> int:
    """Examine, print and write, a symptom's verdict first; 4 where a fault was found, 3 where it cannot be told."""
    if target is None:
        target = resolve(None).location
        notice(f"examining {target}, the newest run")
    files = {form: getattr(args, form) for form in FORMS if hasattr(args, form)}
    refuse_unwritable(files)
    request, timeout = _request(target, args), number(args, "timeout", TIMEOUT)
    if hasattr(args, "symptom"):
        diagnosis = diagnose(args.symptom, request, timeout=timeout)
        tell(console, diagnosis)
        report, result = diagnosis.report, diagnosis.as_json()
    else:
        report = check_model(request, timeout=timeout)
        result = report.as_json()
    for text, style in report.lines(verbose=hasattr(args, "verbose")):
        console.say(text, style)
    write(report, files)
    console.result(result)
    return report.exit_code


def _request(target: str | None, args: argparse.Namespace) -> Request:
    return Request(
        target=target,
        kind=None if getattr(args, "kind", "auto") == "auto" else args.kind,
        level=getattr(args, "level", "quick"),
        only=[id for word in getattr(args, "only", []) for id in word.split(",")],
        allow=pairs(args, "allow"),
        settings=pairs(args, "set"),
        seed=int(number(args, "seed", 0)),
        batch=getattr(args, "batch", None),
        pad_id=token(args, "pad_id"),
        device=getattr(args, "device", "cpu"),
    )
