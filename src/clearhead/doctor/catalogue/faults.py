"""The faults that the doctor knows: what a person observes, how it comes about, what to change. Imports no torch."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from clearhead.doctor.spec import KINDS, LEVELS
from clearhead.errors import UsageError
from clearhead.suggestions import did_you_mean


@dataclass(frozen=True)
class CatalogueEntry:
    """One fault. `mutant`: the smallest change to healthy code that shows it."""

    id: str
    title: str
    symptom: str
    mechanism: str
    fix: str
    mutant: str


def read(name: str) -> dict[str, Any]:
    """One of the tables beside this file."""
    return tomllib.loads(files("clearhead.doctor.catalogue").joinpath(name).read_text(encoding="utf-8"))


CATALOGUE = {id: CatalogueEntry(id=id, **texts) for id, texts in read("faults.toml").items()}


def refuse_unknown(kind: str | None, level: str, ids: Iterable[str]) -> None:
    """Check names before anything slow is done.

    Raises:
        UsageError: an unknown kind, level or id.
    """
    for value, known, what in ((kind, KINDS, "kind"), (level, LEVELS, "level")):
        if value is not None and value not in known:
            raise UsageError(f"{what} '{value}' is none of {', '.join(known)}{did_you_mean(str(value), known)}")
    for id in ids:
        if id not in CATALOGUE:
            raise UsageError(f"there is no check '{id}'{did_you_mean(id, CATALOGUE)}; 'clearhead doctor list' has all")
