"""What a check found, for a person and for a program. Imports no torch."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.report.records import Line, Record, labelled
from clearhead.pages import printable

Status = Literal["fail", "warn"]
STYLE = {"fail": "bold red", "warn": "yellow"}
LARGEST = 2_000_000  # bytes; a larger file of code is not opened
AROUND = 2  # lines before and after the one that is meant
SIGNS = "rows are logits, columns tokens: # legal, ! illegal, - missing"


@dataclass(frozen=True)
class Excerpt:
    """Some lines of a file, the number of the first, and the number of the one that the finding is about."""

    first: int
    meant: int
    lines: tuple[str, ...]

    @property
    def line(self) -> str:
        """The one that the finding is about, without its indentation."""
        return self.lines[self.meant - self.first].strip()


def excerpt(file: str | None, line: int | None) -> Excerpt | None:
    """A line with those around it; None if there is none, or if the file cannot be read anymore."""
    if file is None or not line:
        return None
    path = Path(file)
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except (OSError, ValueError):  # a name that no file can have
        return None
    if not 1 <= line <= len(lines):
        return None
    first = max(1, line - AROUND)
    return Excerpt(first, line, tuple(text.rstrip("\r") for text in lines[first - 1 : line + AROUND]))


@dataclass(frozen=True)
class Evidence:
    """What was measured. A failure has a witness: two inputs, and an output that moved or stayed when it must not.

    Without anything that it contradicts a model is only unlike others, and the finding is a warning.
    """

    value: float
    threshold: float
    noise_floor: float
    witness: str
    against: str = ""  # what it contradicts: what else the model does or says, or what nobody can mean
    second: str = ""  # what else speaks against the model


@dataclass(frozen=True)
class Where(Record):
    """The first part that is at fault, as far as it is known; `file` and `line` are what to change."""

    module: str | None = None
    class_name: str | None = field(default=None, metadata={"key": "class"})
    file: str | None = None
    line: int | None = None
    op: str | None = None
    head: int | None = None
    backend: str | None = None

    @property
    def place(self) -> str:
        """In a few words, for a line of text; the file relative to the current folder."""
        parts = [self.module or "", f"({self.class_name})" if self.class_name else ""]
        if self.file:
            parts.append(self.file.removeprefix(os.getcwd() + os.sep) + (f":{self.line}" if self.line else ""))
        return " ".join(filter(None, parts)) + (f" [{self.backend} only]" if self.backend else "")

    @property
    def place_and_op(self) -> str:
        """The same with the operation; empty if the place is unknown."""
        return self.place + (f", at '{self.op}'" if self.place and self.op else "")


@dataclass(frozen=True)
class PossibleCause:
    """A fault that would explain a finding, and how well it does: 0 at worst, 1 at best."""

    id: str
    score: float


@dataclass(frozen=True)
class Finding(Record):
    """One fault. `id` is the likeliest cause, an id of the catalogue; `causes` are all that fit, the best first.

    `check`: the name of the check that found it.
    """

    computed = ("title", "why", "fix")

    id: str
    status: Status
    evidence: Evidence
    where: Where = Where()
    causes: tuple[PossibleCause, ...] = ()
    picture: tuple[str, ...] = ()
    repro: str = ""
    check: str = ""

    def __post_init__(self) -> None:
        if not self.causes:
            object.__setattr__(self, "causes", (PossibleCause(self.id, 1.0),))

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
        """What, where, and what to do."""
        suffix = f" in {self.where.place}" if self.where.place else ""
        return f"{self.id} {self.title}{suffix}: {self.evidence.witness}; {self.fix}"

    @property
    def alternatives(self) -> tuple[PossibleCause, ...]:
        """The next best causes after the likeliest."""
        return self.causes[1:4]

    def lines(self) -> Iterator[Line]:
        """The finding as a report prints it."""
        name = self.where.module or ("the whole model" if self.where.file is None else "")
        yield f"{self.status.upper()} {self.id}  {self.title}  {name}".rstrip(), STYLE[self.status]
        yield labelled("evidence", self.evidence.witness), ""
        if self.evidence.against and self.status == "fail":
            second = f", and {self.evidence.second}" if self.evidence.second else ""
            yield labelled("against", f"{self.evidence.against}{second}"), ""
        if self.where.place:
            yield labelled("where", self.where.place_and_op), ""
        code = excerpt(self.where.file, self.where.line)
        if code is not None and code.line:
            yield labelled("", code.line), "cyan"
        for number, row in enumerate(self.picture):
            yield labelled("" if number else "picture", row), "red" if "!" in row else ""
        if self.picture:
            yield labelled("", SIGNS), "dim"
        yield labelled("why", self.why), ""
        yield labelled("fix", self.fix), ""
        others = ", ".join(f"{cause.id} {cause.score:.0%}" for cause in self.alternatives)
        if others:
            yield labelled("or", f"{others}; 'clearhead doctor explain ID' describes each"), ""
        if self.repro:
            yield labelled("again", self.repro), ""


def text_of(findings: Iterable[Finding]) -> str:
    """Findings as a report prints them, with an empty line between."""
    return "\n\n".join("\n".join(printable(line) for line, _ in finding.lines()) for finding in findings)
