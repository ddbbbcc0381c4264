"""From what a person observes to its causes: which faults would show like this, and which of them are ruled out.

Imports no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from clearhead.doctor.catalogue.faults import CATALOGUE, read
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.records import Json, Line, ReadableRecord
from clearhead.doctor.report.report import Report
from clearhead.doctor.report.verdict import Answer
from clearhead.errors import UsageError
from clearhead.suggestions import did_you_mean

STYLE: dict[Answer, str] = {"yes": "bold red", "unknown": "yellow", "no": "green"}  # in the order of the text


@dataclass(frozen=True)
class Symptom:
    """Something that a person observes. `causes`: ids of the catalogue, the likeliest first."""

    name: str
    title: str
    about: str
    causes: Sequence[str]
    otherwise: str


SYMPTOMS = {name: Symptom(name, **texts) for name, texts in read("symptoms.toml").items()}


def symptom(word: str) -> Symptom:
    """The symptom of that name, whether its words are joined by spaces, hyphens or underscores.

    Raises:
        UsageError: it is unknown; the sentence names all.
    """
    symptom = SYMPTOMS.get("-".join(word.lower().replace("_", " ").replace("-", " ").split()))
    if symptom is None:
        raise UsageError(f"there is no symptom '{word}'{did_you_mean(word, SYMPTOMS)}; known are {', '.join(SYMPTOMS)}")
    return symptom


@dataclass(frozen=True)
class Cause:
    """One fault that would show like this, whether it is there, and how that is known."""

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


@dataclass(frozen=True, repr=False)
class Diagnosis(ReadableRecord):
    """A symptom's causes, each found, ruled out or left open. `signs`: what the training's losses and rates show."""

    symptom: Symptom
    causes: tuple[Cause, ...]
    signs: tuple[str, ...]
    report: Report

    @property
    def summary(self) -> str:
        finding = self._finding
        if finding:
            return f"{self.symptom.title}: {finding.id}, {finding.title}"
        denied, number = sum(cause.answer == "no" for cause in self.causes), len(self.causes)
        left = f"; {number - denied} are left open" if denied < number else ""
        return f"{self.symptom.title}: none of {number} known causes is found, and {denied} are ruled out{left}"

    @property
    def _finding(self) -> Finding | None:
        """What explains it: a failure among the known causes, else another failure, else a warning among them."""
        known = [self.report[cause.id] for cause in self.causes if cause.answer == "yes"]
        failures = [finding for finding in (*known, *self.report.findings) if finding.status == "fail"]
        return next(iter((*failures, *known)), None)

    def _lines(self, verbose: bool) -> Iterator[Line]:
        yield self.summary, "bold red" if self._finding else "bold"
        for answer, style in STYLE.items():
            yield from ((f"  {cause.sentence}", style) for cause in self.causes if cause.answer == answer)
        yield from ((f"  curve: {sign}", "") for sign in self.signs)
        if not self._finding:
            yield f"  {self.symptom.otherwise}", ""

    def as_json(self) -> Json:
        """The report, and the diagnosis under 'symptom'."""
        values = {
            "name": self.symptom.name,
            "title": self.symptom.title,
            "verdict": self.summary,
            "causes": [asdict(cause) for cause in self.causes],
            "signs": list(self.signs),
            "otherwise": self.symptom.otherwise,
        }
        return self.report.as_json() | {"symptom": values}


def diagnose(symptom: Symptom, report: Report, signs: Sequence[str] = ()) -> Diagnosis:
    """What a report says about the causes of a symptom."""
    causes = tuple(Cause(id, CATALOGUE[id].title, *report.answer(id)) for id in symptom.causes)
    return Diagnosis(symptom, causes, tuple(signs), report)
