"""clearhead doctor list, clearhead doctor explain ID"""

import argparse
from dataclasses import asdict

from clearhead.cli.console import Console
from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.errors import UsageError
from clearhead.suggestions import did_you_mean


def list_all(console: Console, args: argparse.Namespace, what: str | None) -> int:
    """Print every entry of the catalogue, one a line."""
    if what is not None:
        raise UsageError(f"'{what}' is one argument too many; 'clearhead doctor explain {what}' tells one entry")
    for entry in CATALOGUE.values():
        console.say(f"{entry.id:<4} {entry.title}")
    console.result({entry.id: entry.title for entry in CATALOGUE.values()})
    return 0


def explain(console: Console, args: argparse.Namespace, id: str | None) -> int:
    """Print one entry of the catalogue."""
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
