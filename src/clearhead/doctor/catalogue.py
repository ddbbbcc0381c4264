"""The faults that the doctor knows by name: what one sees, how it comes about, what to change. Imports no torch."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Entry:
    """One fault. `mutant`: the smallest change to healthy code that shows it."""

    id: str
    title: str
    symptom: str
    mechanism: str
    fix: str
    mutant: str


def _read() -> dict[str, Entry]:
    told = tomllib.loads(files("clearhead.doctor").joinpath("catalogue.toml").read_text(encoding="utf-8"))
    return {id: Entry(id=id, **texts) for id, texts in told.items()}


CATALOGUE = _read()
