"""clearhead doctor"""

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from clearhead.cli.arguments import Parser
from clearhead.cli.console import Console
from clearhead.errors import DataError, FaultError, UsageError
from clearhead.options import did_you_mean

if TYPE_CHECKING:
    from clearhead.doctor.apart import Request

TIMEOUT = 300.0  # seconds


def parser() -> Parser:
    """What `clearhead doctor` understands."""
    parser = Parser(
        "doctor",
        "Prove or refute that a Transformer is right: any PyTorch model, the guilty module named. Imports and calls "
        "the target's code, in a process of its own; uses no network.",
        [
            ("clearhead doctor mymodel.py:build", "a function without arguments, or a module, in a file of yours"),
            ("clearhead doctor hf:llama --set num_hidden_layers=2", "an architecture of transformers; no download"),
            ("clearhead doctor", "the newest run"),
            ("clearhead doctor loss mylosses.py:compute", "what a loss function really asks for, token by token"),
            ("clearhead doctor explain M01", "one fault of the catalogue; 'list' has all"),
        ],
    )
    parser.add_argument("target", nargs="?", help="file.py:name, package.module:name, hf:NAME, hf:FOLDER or a run")
    parser.add_argument("what", nargs="?", help="after 'loss' a function, after 'explain' an id")
    parser.add_argument("--kind", help="causal, bidirectional or seq2seq (default: auto, read from the model)")
    parser.add_argument(
        "--level", help="quick (default), or standard, which looks at longer rows of large models as well"
    )
    parser.add_argument("--only", action="append", metavar="ID", help="only what can find this; may be given again")
    parser.add_argument("--allow", action="append", metavar="ID=REASON", help="no fault here, and why")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="a value of the config of hf:NAME")
    parser.add_argument("--seed", help="of inputs and noise (default: 0)")
    parser.add_argument("--timeout", help=f"seconds for the whole examination (default: {TIMEOUT:g})")
    return parser


def run(given: argparse.Namespace) -> int:
    """Examine and print; 4 where a fault was found, 3 where nothing could be."""
    console = Console(json=given.json)
    target, what = getattr(given, "target", None), getattr(given, "what", None)
    if target == "list" and what is None:
        return _list(console)
    if target == "explain":
        return _explain(console, what)
    if target == "loss":
        return _loss(console, what, given)
    if what is not None:
        raise UsageError(f"'{what}' is one argument too many; see 'clearhead doctor --help'")
    return _check(console, target, given)


def _check(console: Console, target: str | None, given: argparse.Namespace) -> int:
    from clearhead.doctor.apart import examine_apart
    from clearhead.doctor.findings import Report
    from clearhead.doctor.rendering import lines

    report = Report.from_json(examine_apart(_request(target, given), timeout=_number(given, "timeout", TIMEOUT)))
    for text, style in lines(report):
        console.say(text, style)
    console.result(report.as_json())
    return {"healthy": 0, "faulty": FaultError.exit_code, "unknown": DataError.exit_code}[report.verdict]


def _request(target: str | None, given: argparse.Namespace) -> "Request":
    from clearhead.doctor.apart import Request
    from clearhead.doctor.catalogue import refuse_unknown

    is_run = target is None or not (target.startswith("hf:") or ":" in target or target.endswith(".py"))
    kind = None if getattr(given, "kind", "auto") == "auto" else given.kind
    level, allow, settings = getattr(given, "level", "quick"), _pairs(given, "allow"), _pairs(given, "set")
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
        seed=int(_number(given, "seed", 0)),
        factory=("clearhead.workflows.examining:model_of_run", target or "") if is_run else None,
    )


def _pairs(given: argparse.Namespace, name: str) -> dict[str, str]:
    pairs = {}
    for word in getattr(given, name, []):
        key, equals, value = word.partition("=")
        if not equals or not value:
            form = "ID=REASON" if name == "allow" else "KEY=VALUE"
            raise UsageError(f"--{name} takes {form}, not '{word}'")
        pairs[key] = value
    return pairs


def _number(given: argparse.Namespace, name: str, default: float) -> float:
    word = getattr(given, name, default)
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    lowest = 0 if name == "seed" else 1e-3
    if not lowest <= number < 2**31 or (name == "seed" and number != int(number)):
        raise UsageError(f"--{name} takes a number from {lowest:g}, not '{word}'")
    return number


def _list(console: Console) -> int:
    from clearhead.doctor.catalogue import CATALOGUE

    for entry in CATALOGUE.values():
        console.say(f"{entry.id:<4} {entry.title}")
    console.result({entry.id: entry.title for entry in CATALOGUE.values()})
    return 0


def _explain(console: Console, id: str | None) -> int:
    from clearhead.doctor.catalogue import CATALOGUE

    if id is None:
        raise UsageError("explain what? 'clearhead doctor explain M01'; 'clearhead doctor list' has all ids")
    entry = CATALOGUE.get(id.upper())
    if entry is None:
        raise UsageError(f"there is no '{id}'{did_you_mean(id, CATALOGUE)}; 'clearhead doctor list' has all ids")
    console.say(f"{entry.id}  {entry.title}", "bold")
    for label in ("symptom", "mechanism", "fix", "mutant"):
        console.say(f"  {label:<10} {getattr(entry, label)}")
    console.result(asdict(entry))
    return 0


def _loss(console: Console, target: str | None, given: argparse.Namespace) -> int:
    from clearhead.doctor.apart import Request, examine_apart

    if target is None:
        raise UsageError("whose loss? 'clearhead doctor loss mylosses.py:compute'")
    request = Request(target, task="loss", seed=int(_number(given, "seed", 0)))
    told = examine_apart(request, timeout=_number(given, "timeout", TIMEOUT))
    for line in told.pop("lines"):
        console.say(line)
    console.result(told)
    return FaultError.exit_code if told["verdict"] == "faulty" else 0
