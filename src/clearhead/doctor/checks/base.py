"""What a check is, and the few things that all of them need."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from clearhead.doctor.report.findings import Evidence, Finding, Status, Where
from clearhead.doctor.report.verdict import BROKE, Outcome
from clearhead.doctor.spec import Level
from clearhead.doctor.subject import Subject

SubjectT = TypeVar("SubjectT", contravariant=True)
Causes = tuple[tuple[str, float], ...]


class Skipped(Exception):  # noqa: N818 - nothing went wrong
    """The check has nothing to say about this model, and why."""


@dataclass(frozen=True)
class Check:
    """One question to a model.

    Args:
        id: the fault that it is named after.
        name: in a word or two.
        covers: every id that it can find, that it names among the causes of what it finds, or that would make it fail
            under another name: whoever asks for one of them is answered by this check too.
        run: the findings; raises `Skipped`.
        needs: names of checks whose failure would make this one's answer worthless.
        level: the least at which it is made.
        of_tokens: it asks for logits of each token, and has nothing to ask where one output is given for a whole row.
    """

    id: str
    name: str
    covers: tuple[str, ...]
    run: Callable[[Subject], list[Finding]]
    needs: tuple[str, ...] = ()
    level: Level = "quick"
    of_tokens: bool = False


class Question(Protocol[SubjectT]):
    """What checks of a model and of a training have in common."""

    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def run(self) -> Callable[[SubjectT], list[Finding]]: ...


def answer(
    question: Question[SubjectT], subject: SubjectT, failed: Container[str], allow: Mapping[str, str]
) -> tuple[Outcome, str, list[Finding]]:
    """Ask, unless a failed check would falsify the answer; what is allowed is waived, with the reason."""
    blocking = [name for name in question.needs if name in failed]
    if blocking:
        return "blocked", f"cannot be judged while '{blocking[0]}' does not hold", []
    try:
        found = question.run(subject)
    except Skipped as reason:
        return "skip", str(reason), []
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        return "skip", f"{BROKE} ({type(error).__name__}: {' '.join(str(error).split())[:120]})", []
    open_ = [finding for finding in found if finding.id not in allow]
    if open_:
        worst: Outcome = "fail" if any(finding.status == "fail" for finding in open_) else "warn"
        return worst, open_[0].title, found
    return ("waived", f"{found[0].id}: {allow[found[0].id]}", found) if found else ("pass", "", [])


def joined(before: Sequence[Finding], found: Iterable[Finding], check: str, allow: Container[str]) -> list[Finding]:
    """What was found so far and what that check found.

    Each fault is told by the check that found it first; but a failure is told in the place of a warning.
    """
    new = [replace(finding, check=check) for finding in found if finding.id not in allow]
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
    return Finding(ranked[0][0], status, evidence, where or Where(), ranked, picture)
