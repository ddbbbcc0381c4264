"""What a check is, and the few things that all of them need."""

import pkgutil
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Generic, TypeVar

from clearhead.doctor.problems import attempt
from clearhead.doctor.report.findings import Evidence, Finding, PossibleCause, Status, Where
from clearhead.doctor.report.verdict import BROKE, Checked, Outcome
from clearhead.doctor.spec import Level
from clearhead.doctor.subject import Subject

SubjectT = TypeVar("SubjectT")
Run = Callable[[SubjectT], list[Finding]]
Causes = tuple[tuple[str, float], ...]
BASE = ("finite", "deterministic", "rows")  # what nearly every check needs
SOUND = (*BASE, "layouts", "dependencies")


class Skipped(Exception):  # noqa: N818 - nothing went wrong
    """The check has nothing to say about this model, and why."""


@dataclass(frozen=True)
class Check(Generic[SubjectT]):
    """One question to a model, or to a training.

    Args:
        id: the fault that it is named after.
        name: in a word or two.
        order: where it stands among the others; what it needs has a smaller number.
        covers: every id that it can find, that it names among the causes of what it finds, or that would make it fail
            under another name: whoever asks for one of them is answered by this check too.
        holds: what is true if it finds nothing.
        run: the findings; raises `Skipped`.
        needs: names of checks whose failure would make this one's answer worthless.
        level: the least at which it is made.
        of_tokens: it asks for logits of each token, and has nothing to ask where one output is given for a whole row.
    """

    id: str
    name: str
    order: int
    covers: tuple[str, ...]
    holds: str
    run: Callable[[SubjectT], list[Finding]]
    needs: tuple[str, ...] = ()
    level: Level = "quick"
    of_tokens: bool = False

    def checked(self, status: Outcome, note: str, began: float) -> Checked:
        """What it came to, for the report. `began`: as `time.perf_counter` had it."""
        milliseconds = 1000 * (time.perf_counter() - began)
        return Checked(self.id, self.name, self.covers, self.holds, status, note, milliseconds)


class Registry(Generic[SubjectT]):
    """The checks of one sort of subject. It is the decorator that registers a function as a check."""

    def __init__(self) -> None:
        self._checks: list[Check[SubjectT]] = []

    def __call__(
        self,
        id: str,
        name: str,
        *,
        order: int,
        covers: tuple[str, ...],
        holds: str,
        needs: tuple[str, ...] = (),
        level: Level = "quick",
        of_tokens: bool = False,
    ) -> Callable[[Run[SubjectT]], Run[SubjectT]]:
        """See `Check`."""

        def register(run: Run[SubjectT]) -> Run[SubjectT]:
            self._checks.append(Check(id, name, order, covers, holds, run, needs, level, of_tokens))
            return run

        return register

    def in_order(self) -> tuple[Check[SubjectT], ...]:
        """All that are registered, in the order in which they are made."""
        return tuple(sorted(self._checks, key=lambda check: check.order))


model_check = Registry[Subject]()


def load_all(package: str, folders: Iterable[str]) -> None:
    """Import every module below a package, so that what registers itself there is known."""
    for module in pkgutil.walk_packages(folders, f"{package}."):
        import_module(module.name)


def answer(
    check: Check[SubjectT], subject: SubjectT, failed: Container[str], allow: Mapping[str, str]
) -> tuple[Outcome, str, list[Finding]]:
    """Ask, unless a failed check would falsify the answer; what is allowed is waived, with the reason."""
    blocking = [name for name in check.needs if name in failed]
    if blocking:
        return "blocked", f"cannot be judged while '{blocking[0]}' does not hold", []
    with attempt() as attempted:
        findings = check.run(subject)
    if isinstance(attempted.error, Skipped):
        return "skip", str(attempted.error), []
    if isinstance(attempted.error, MemoryError):
        raise attempted.error
    if attempted.failed:
        return "skip", f"{BROKE} ({attempted.sentence(120)})", []
    open_ = [finding for finding in findings if finding.id not in allow]
    if open_:
        worst: Outcome = "fail" if any(finding.status == "fail" for finding in open_) else "warn"
        return worst, open_[0].title, findings
    return ("waived", f"{findings[0].id}: {allow[findings[0].id]}", findings) if findings else ("pass", "", [])


def joined(before: Sequence[Finding], findings: Iterable[Finding], check: str, allow: Container[str]) -> list[Finding]:
    """What was found so far and what that check found.

    Each fault is told by the check that found it first; but a failure is told in the place of a warning.
    """
    new = [replace(finding, check=check) for finding in findings if finding.id not in allow]
    failed = {finding.id for finding in new if finding.status == "fail"}
    kept = [finding for finding in before if finding.status == "fail" or finding.id not in failed]
    known = {finding.id for finding in kept}
    return kept + [finding for finding in new if finding.id not in known]


def finding(
    causes: Causes | str,
    witness: str,
    *,
    value: float = 1.0,
    threshold: float = 0.0,
    floor: float = 0.0,
    where: Where | None = None,
    picture: tuple[str, ...] = (),
    status: Status = "fail",
) -> Finding:
    """A finding named after the likeliest of its causes."""
    ranked: Causes = ((causes, 1.0),) if isinstance(causes, str) else tuple(sorted(causes, key=lambda c: -c[1]))
    evidence = Evidence(value, threshold, floor, witness)
    possible = tuple(PossibleCause(id, round(score, 3)) for id, score in ranked)
    return Finding(ranked[0][0], status, evidence, where or Where(), possible, picture)
