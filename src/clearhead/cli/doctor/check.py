"""clearhead doctor TARGET"""

import argparse

from clearhead.cli.console import Console
from clearhead.cli.doctor.words import TIMEOUT, number, pairs
from clearhead.doctor.apart import Request, examine_apart
from clearhead.doctor.catalogue import refuse_unknown
from clearhead.doctor.reports.findings import Report
from clearhead.doctor.reports.text import lines
from clearhead.errors import DataError, FaultError, UsageError


def check(console: Console, given: argparse.Namespace, target: str | None) -> int:
    """Examine a model and print; 4 where a fault was found, 3 where nothing could be."""
    report = Report.from_json(examine_apart(_request(target, given), timeout=number(given, "timeout", TIMEOUT)))
    for text, style in lines(report):
        console.say(text, style)
    console.result(report.as_json())
    return {"healthy": 0, "faulty": FaultError.exit_code, "unknown": DataError.exit_code}[report.verdict]


def _request(target: str | None, given: argparse.Namespace) -> Request:
    is_run = target is None or not (target.startswith("hf:") or ":" in target or target.endswith(".py"))
    kind = None if getattr(given, "kind", "auto") == "auto" else given.kind
    level, allow, settings = getattr(given, "level", "quick"), pairs(given, "allow"), pairs(given, "set")
    only = [id for word in getattr(given, "only", []) for id in word.split(",")]
    refuse_unknown(kind, level, (*only, *allow))
    if settings and not (target or "").startswith("hf:"):
        raise UsageError("--set is for hf:NAME only; a factory of yours chooses its own sizes")
    return Request(
        target=target or "the newest run",
        kind=kind,
        level=level,
        only=only,
        allow=allow,
        settings=settings,
        seed=int(number(given, "seed", 0)),
        factory=("clearhead.workflows.examining:model_of_run", target or "") if is_run else None,
    )
