"""From what a person sees to what is behind it: which faults would show so, and which of them are refuted.

Imports no torch.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.report.answers import Answer, answered
from clearhead.doctor.report.findings import Finding, Json
from clearhead.doctor.report.report import Report
from clearhead.doctor.report.text import Line
from clearhead.errors import UsageError, did_you_mean
from clearhead.pages import printable

STYLE: dict[Answer, str] = {"yes": "bold red", "no": "green", "unknown": "yellow"}


@dataclass(frozen=True)
class Symptom:
    """Something that one sees. `causes`: ids of the catalogue, the likeliest first."""

    name: str
    title: str
    about: str
    causes: tuple[str, ...]
    otherwise: str


def _read() -> dict[str, Symptom]:
    tables = tomllib.loads(files("clearhead.doctor.catalogue").joinpath("symptoms.toml").read_text(encoding="utf-8"))
    return {name: Symptom(name, **(texts | {"causes": tuple(texts["causes"])})) for name, texts in tables.items()}


SYMPTOMS = _read()


def symptom(word: str) -> Symptom:
    """The symptom of that name, however its words are joined.

    Raises:
        UsageError: it is unknown; the sentence names all.
    """
    symptom = SYMPTOMS.get("-".join(word.lower().replace("_", " ").replace("-", " ").split()))
    if symptom is None:
        raise UsageError(f"there is no symptom '{word}'{did_you_mean(word, SYMPTOMS)}; known are {', '.join(SYMPTOMS)}")
    return symptom


@dataclass(frozen=True)
class Cause:
    """One fault that would show so, whether it is there, and how that is known."""

    id: str
    title: str
    answer: Answer
    why: str

    @property
    def sentence(self) -> str:
        """The answer first."""
        if self.answer == "no":
            return f"not {self.id} ({self.title}): {self.why}"
        return f"{self.id}: {'yes' if self.answer == 'yes' else 'open'}, {self.why}"


@dataclass(frozen=True)
class Diagnosis:
    """A symptom's causes, each found, refuted or left open. `signs`: what the curve of the training says."""

    symptom: Symptom
    causes: tuple[Cause, ...]
    signs: tuple[str, ...]
    report: Report

    @property
    def verdict(self) -> str:
        """In one sentence."""
        finding = self._found
        if finding:
            return f"{self.symptom.title}: {finding.id}, {finding.title}"
        denied, all_ = sum(cause.answer == "no" for cause in self.causes), len(self.causes)
        left = f"; {all_ - denied} are left open" if denied < all_ else ""
        return f"{self.symptom.title}: none of {all_} known causes is found, and {denied} are refuted{left}"

    @property
    def _found(self) -> Finding | None:
        """What is behind it: a fault among the known causes, else one that was met on the way, else a warning."""
        known = [self.report[cause.id] for cause in self.causes if cause.answer == "yes"]
        by_weight = sorted((*known, *self.report.findings), key=lambda finding: finding.status != "fail")
        return next((finding for finding in by_weight if finding.status == "fail" or finding in known), None)

    def lines(self) -> Iterator[Line]:
        """The verdict first, then cause by cause, and what to do where none is found."""
        for text, style in self._lines():
            yield printable(text), style

    def _lines(self) -> Iterator[Line]:
        is_found = self._found is not None
        yield self.verdict, "bold red" if is_found else "bold"
        order: tuple[Answer, ...] = ("yes", "unknown", "no")
        for cause in sorted(self.causes, key=lambda cause: order.index(cause.answer)):
            yield f"  {cause.sentence}", STYLE[cause.answer]
        for sign in self.signs:
            yield f"  curve: {sign}", ""
        if not is_found:
            yield f"  {self.symptom.otherwise}", ""

    def as_json(self) -> Json:
        """The report, and the diagnosis under 'symptom'."""
        values = {
            "name": self.symptom.name,
            "title": self.symptom.title,
            "verdict": self.verdict,
            "causes": [asdict(cause) for cause in self.causes],
            "signs": list(self.signs),
            "otherwise": self.symptom.otherwise,
        }
        return self.report.as_json() | {"symptom": values}


def diagnose(symptom: Symptom, report: Report, signs: Sequence[str] = ()) -> Diagnosis:
    """What a report says about the causes of a symptom."""
    return Diagnosis(symptom, tuple(_judge(id, report) for id in symptom.causes), tuple(signs), report)


def _judge(id: str, report: Report) -> Cause:
    return Cause(id, CATALOGUE[id].title, *answered(id, report))
