"""What a check found, in the words and the numbers that a person and a program read. Imports no torch."""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from clearhead.doctor.catalogue.faults import CATALOGUE

Json = dict[str, Any]
Status = Literal["fail", "warn"]


@dataclass(frozen=True)
class Evidence:
    """What was measured. A fail has a witness: two inputs, and one output that had to stay and moved, or to move."""

    value: float
    threshold: float
    noise_floor: float
    witness: str


@dataclass(frozen=True)
class Where:
    """The first part that is guilty, as far as it is known; `file` and `line` are those to be changed."""

    module: str | None = None
    class_name: str | None = None
    file: str | None = None
    line: int | None = None
    op: str | None = None
    head: int | None = None
    backend: str | None = None

    @property
    def place(self) -> str:
        """In a few words, for a line of text."""
        parts = [self.module or "", f"({self.class_name})" if self.class_name else ""]
        if self.file:
            file = _nearby(self.file)
            parts.append(f"{file}:{self.line}" if self.line else file)
        return " ".join(part for part in parts if part) + (f" [{self.backend} only]" if self.backend else "")

    def as_json(self) -> Json:
        """Plain data: the class is called so."""
        return {("class" if name == "class_name" else name): value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `as_json`."""
        return cls(**{("class_name" if name == "class" else name): value for name, value in document.items()})


def _finite(value: object) -> Any:
    """JSON knows no infinity and no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _nearby(file: str) -> str:
    """The path from here, where it is below."""
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


@dataclass(frozen=True)
class Finding:
    """One fault. `id` is the likeliest cause, in the catalogue's terms; `causes` are all that fit, best first.

    `check`: the name of the check that found it.
    """

    id: str
    status: Status
    evidence: Evidence
    where: Where = Where()
    causes: tuple[tuple[str, float], ...] = ()
    picture: tuple[str, ...] = ()
    repro: str = ""
    check: str = ""

    @property
    def title(self) -> str:
        """What is wrong, in a few words."""
        return CATALOGUE[self.id].title

    @property
    def why(self) -> str:
        """How it comes about."""
        return CATALOGUE[self.id].mechanism

    @property
    def fix(self) -> str:
        """What to change."""
        return CATALOGUE[self.id].fix

    @property
    def sentence(self) -> str:
        """What, where, what to do."""
        suffix = f" in {self.where.place}" if self.where.place else ""
        return f"{self.id} {self.title}{suffix}: {self.evidence.witness}; {self.fix}"

    def as_json(self) -> Json:
        """Plain data, as the schema in docs/doctor.md has it."""
        causes = self.causes or ((self.id, 1.0),)
        return {
            "id": self.id,
            "title": self.title,
            "status": self.status,
            "check": self.check,
            "evidence": {name: _finite(value) for name, value in asdict(self.evidence).items()},
            "where": self.where.as_json(),
            "causes": [{"id": name, "score": round(score, 3)} for name, score in causes],
            "why": self.why,
            "fix": self.fix,
            "picture": list(self.picture),
            "repro": self.repro,
        }

    @classmethod
    def from_json(cls, document: Json) -> Self:
        """The reverse of `as_json`."""
        evidence: Json = {name: math.nan if value is None else value for name, value in document["evidence"].items()}
        return cls(
            id=document["id"],
            status=document["status"],
            evidence=Evidence(**evidence),
            where=Where.from_json(document["where"]),
            causes=tuple((cause["id"], cause["score"]) for cause in document["causes"]),
            picture=tuple(document["picture"]),
            repro=document["repro"],
            check=document["check"],
        )
