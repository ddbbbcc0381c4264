"""A model is examined once, and the answers of its checks are then given again to every narrowed examination of it.

Narrowed is the examination itself (`check(model, only=...)`): which checks are chosen, what blocks them, what is told
of them and what is concluded. Only what a check measures is taken from the whole examination, which makes tens of
thousands of narrowed ones possible; that it is the same when it is measured again is a law of its own, on some of them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from clearhead.doctor import Report, Spec, check, examination
from clearhead.doctor.catalogue.symptoms import SYMPTOMS, diagnose
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.checks.base import Check
from clearhead.doctor.mending import mended
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.spec import Journal, Level

Answer = list[Finding] | Exception


@dataclass
class Examined:
    """A whole report, and what each check gave back or raised, again to confirm it, and where its fault was mended."""

    report: Report
    answers: dict[str, list[Answer]]
    subject: dict[str, Any]
    mends: frozenset[str] = frozenset()  # names of the checks whose fault was mended
    level: Level = "quick"
    only_weights: nn.Module = field(default_factory=lambda: nn.Linear(2, 2))

    def narrowed(self, *only: str) -> Report:
        """What `check(model, only=only)` says."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(examination, "CHECKS", tuple(replace(one, run=self._answering(one)) for one in CHECKS))
            patch.setattr(examination, "prepare", self._subject)
            patch.setattr(examination, "mended", lambda subject, name, *_: subject if name in self.mends else None)
            patch.setattr(examination, "redrawn", nullcontext)
            return check(self.only_weights, level=self.level, only=only)

    def _answering(self, one: Check[Any]) -> Any:
        left = iter(self.answers.get(one.name, []))

        def run(subject: object) -> list[Finding]:
            if one.name not in self.answers:
                pytest.fail(f"'{one.name}' was blocked in the whole examination, and is asked in the narrowed one")
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return run

    def _subject(self, model: nn.Module, spec: Spec, level: Level, *more: Any) -> SimpleNamespace:
        return SimpleNamespace(spec=spec, level=level, failed=more[-1], **self.subject)


@contextmanager
def _listening(answers: dict[str, list[Answer]], subjects: list[Any], mends: set[str]) -> Iterator[None]:
    def mending(subject: Any, name: str, *more: Any) -> Any:
        repaired = mended(subject, name, *more)
        if repaired is not None:
            mends.add(name)
        return repaired

    def listening(one: Check[Any]) -> Any:
        def run(subject: Any) -> list[Finding]:
            try:
                findings = one.run(subject)
            except Exception as error:
                answers.setdefault(one.name, []).append(error)
                raise
            finally:
                subjects[:] = [subject]
            answers.setdefault(one.name, []).append(findings)
            return [*findings]

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examination, "CHECKS", tuple(replace(one, run=listening(one)) for one in CHECKS))
        patch.setattr(examination, "mended", mending)
        yield


def examined(model: nn.Module, level: Level = "quick") -> Examined:
    """Of a model as it comes, with nothing declared."""
    answers: dict[str, list[Answer]] = {}
    subjects: list[Any] = []
    mends: set[str] = set()
    with _listening(answers, subjects, mends):
        report = check(model, level=level)
    (subject,) = subjects
    kept = {
        "kind": report.kind,
        "journal": Journal(assumptions=list(report.assumptions)),
        "assumed_kind": None,
        "drops_in_evaluation": subject.drops_in_evaluation,
        "gives_rows": subject.gives_rows,
        "is_seeded": subject.is_seeded,
        "convention": SimpleNamespace(sentence=subject.convention.sentence),
    }
    for answer in chain.from_iterable(answers.values()):
        if isinstance(answer, Exception):
            answer.__traceback__ = answer.__context__ = answer.__cause__ = None  # they hold on to the model
    return Examined(report, answers, kept, frozenset(mends), level)


FOUND = ("fail", "warn")
WORDS = tuple(dict.fromkeys(word for one in CHECKS for word in (one.name, *one.covers)))  # what --only can take


def denials(whole: Examined, planted: Iterable[str]) -> Iterator[str]:
    """What narrowed examinations say against a whole one that found a fault, and against the fault that was planted.

    Args:
        planted: the ids that describe it.
    """
    found = {finding.id for finding in whole.report.findings}
    true = {*planted, *found} if found else set()
    is_faulty = whole.report.verdict == "faulty"
    for only in [(word,) for word in WORDS]:
        report = whole.narrowed(*only)
        is_asked = is_faulty and bool({*only} & true) and not {*only} & {finding.id for finding in report.findings}
        yield from (f"--only {only[0]}: {told}" for told in _of_report(whole, report, is_asked))
    for name, symptom in SYMPTOMS.items():
        diagnosis = diagnose(symptom, whole.narrowed())
        told = [*_of_report(whole, diagnosis.report, is_faulty)]
        told += [f"not {cause.id}" for cause in diagnosis.causes if cause.answer == "no" and cause.id in true]
        wrong = [check.holds for check in whole.report.checks if check.status in FOUND]
        refuting = "\n".join(cause.why for cause in diagnosis.causes if cause.answer == "no")
        told += [f"says '{sentence}'" for sentence in wrong if sentence in refuting]
        yield from (f"--symptom {name}: {one}" for one in told)


def _of_report(whole: Examined, report: Report, is_asked: bool) -> Iterator[str]:
    if report.verdict == "healthy" and (report.only or whole.report.verdict != "healthy"):
        yield "healthy"
    if is_asked and report.exit_code == 0:
        yield "exit 0"
    met = {check.name for check in report.checks if check.status == "fail"}
    if met and report.exit_code != 4:
        yield f"exit {report.exit_code} though {sorted(met)} failed"
