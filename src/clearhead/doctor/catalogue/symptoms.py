"""From what a person sees to what is behind it: which faults would show so, and which of them are refuted.

Imports no torch.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Literal

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.reports.findings import Finding, Json, Report
from clearhead.doctor.reports.text import Line
from clearhead.errors import UsageError, did_you_mean

Answer = Literal["yes", "no", "unknown"]
STYLE: dict[Answer, str] = {"yes": "bold red", "no": "green", "unknown": "yellow"}
HOLDS = {  # by the name of a check: what it showed, if it found nothing
    "finite": "every logit is a number",
    "storage": "every module is registered and stands once, and what is tied is one tensor",
    "deterministic": "the same batch gives the same bits twice in eval()",
    "rows": "no row of a batch moves another, nor does its place",
    "layouts": "no reshape moves numbers from token to token",
    "norms": "each norm works on one token",
    "query norms": "keys are normalised as queries are",
    "attention": "weights sum to one over the keys, of scores of the right size",
    "dependencies": "each logit depends on the tokens that it should, and on no other",
    "sources": "the whole source moves every logit",
    "paths": "it is the same on every path that was run",
    "stress": "it is the same with scores past 1e4",
    "padded rows": "padding in one row moves no other, and leaves gradients finite",
    "paddings": "tokens under the padding move nothing",
    "positions": "the order of the tokens matters",
    "embeddings": "embeddings have the right size, and every position a row",
    "caches": "with the cache the logits are those without it",
    "generations": "it generates what its logits say, and each request alike",
    "losses": "its loss is a cross-entropy of the right targets",
    "decoder targets": "the decoder is asked for what it has not read",
    "gradients": "every weight has an effect and a gradient",
    "births": "what is zero at first has a gradient soon",
    "residuals": "every token reaches its own logits around each sublayer",
    "streams": "each layer adds to the stream in one way, without dropout on it",
    "activations": "no two linear maps follow each other",
    "fresh loss": "a fresh model's loss is near ln V",
    "again": "it is so for other draws of weights and tokens",
    "precision": "in bfloat16 it is no worse at the end of a row",
    "tasks": "it learns what such a model must learn",
}


WATCHED = "a model alone does not show it; 'clearhead doctor train SCRIPT' watches a training"


@dataclass(frozen=True)
class Symptom:
    """Something that one sees. `causes`: ids of the catalogue, the likeliest first."""

    name: str
    title: str
    about: str
    causes: tuple[str, ...]
    otherwise: str


def _read() -> dict[str, Symptom]:
    told = tomllib.loads(files("clearhead.doctor.catalogue").joinpath("symptoms.toml").read_text(encoding="utf-8"))
    return {name: Symptom(name, **(texts | {"causes": tuple(texts["causes"])})) for name, texts in told.items()}


SYMPTOMS = _read()


def symptom(word: str) -> Symptom:
    """The symptom of that name, however its words are joined.

    Raises:
        UsageError: it is unknown; the sentence names all.
    """
    found = SYMPTOMS.get("-".join(word.lower().replace("_", " ").replace("-", " ").split()))
    if found is None:
        raise UsageError(f"there is no symptom '{word}'{did_you_mean(word, SYMPTOMS)}; known are {', '.join(SYMPTOMS)}")
    return found


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
        return f"{self.id}: {'yes, ' if self.answer == 'yes' else 'could not be examined: '}{self.why}"


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
        found = [cause for cause in self.causes if cause.answer == "yes"]
        if found:
            return f"{self.symptom.title}: {found[0].id}, {found[0].title}"
        refuted = sum(cause.answer == "no" for cause in self.causes)
        return f"{self.symptom.title}: {refuted} of {len(self.causes)} known causes are refuted, and none is found"

    def lines(self) -> Iterator[Line]:
        """The verdict first, then cause by cause, and what to do where none is found."""
        found = any(cause.answer == "yes" for cause in self.causes)
        yield self.verdict, "bold red" if found else "bold"
        order: tuple[Answer, ...] = ("yes", "unknown", "no")
        for cause in sorted(self.causes, key=lambda cause: order.index(cause.answer)):
            yield f"  {cause.sentence}", STYLE[cause.answer]
        for sign in self.signs:
            yield f"  curve: {sign}", ""
        if not found:
            yield f"  {self.symptom.otherwise}", ""

    def as_json(self) -> Json:
        """The report, and the diagnosis under 'symptom'."""
        told = {
            "name": self.symptom.name,
            "title": self.symptom.title,
            "verdict": self.verdict,
            "causes": [asdict(cause) for cause in self.causes],
            "signs": list(self.signs),
            "otherwise": self.symptom.otherwise,
        }
        return self.report.as_json() | {"symptom": told}


def diagnose(symptom: Symptom, report: Report, signs: Sequence[str] = ()) -> Diagnosis:
    """What a report says about the causes of a symptom."""
    return Diagnosis(symptom, tuple(_judge(id, report) for id in symptom.causes), tuple(signs), report)


def _judge(id: str, report: Report) -> Cause:
    title = CATALOGUE[id].title
    finding = next((finding for finding in report.findings if finding.id == id), None)
    if finding is not None:
        return Cause(id, title, "yes", _evidence(finding))
    near = next((finding for finding in report.findings if id in dict(finding.causes)), None)
    if near is not None:
        return Cause(id, title, "unknown", f"what was found fits {near.id} better, {dict(near.causes)[id]:.0%} {id}")
    looked = [check for check in report.checks if id in check.covers]
    made = [check for check in looked if check.status in ("pass", "fail", "warn")]
    if made:
        shown = "; ".join(HOLDS.get(check.name, f"'{check.name}' found nothing") for check in made)
        return Cause(id, title, "no", shown)
    notes = {check.note for check in looked if check.note}
    return Cause(id, title, "unknown", "; ".join(sorted(notes)) or WATCHED)


def _evidence(finding: Finding) -> str:
    place = f", in {finding.where.place}" if finding.where.place else ""
    return f"{finding.evidence.witness}{place}"
