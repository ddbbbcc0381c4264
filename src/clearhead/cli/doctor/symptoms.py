"""clearhead doctor symptoms, and what is printed for --symptom NAME"""

import argparse

from clearhead.cli.console import Console
from clearhead.doctor.catalogue.symptoms import SYMPTOMS, Diagnosis
from clearhead.errors import UsageError


def list_all(console: Console, arguments: argparse.Namespace, what: str | None) -> int:
    """Print every symptom, one a line."""
    if what is not None:
        raise UsageError(f"'{what}' is one argument too many; say 'clearhead doctor --symptom {what} TARGET'")
    for name, symptom in SYMPTOMS.items():
        console.say(f"{name:<24} {symptom.title}")
    console.result({name: symptom.title for name, symptom in SYMPTOMS.items()})
    return 0


def tell(console: Console, diagnosis: Diagnosis) -> None:
    """What is behind it, before the report."""
    for text, style in diagnosis.lines():
        console.say(text, style)
    console.say("")
