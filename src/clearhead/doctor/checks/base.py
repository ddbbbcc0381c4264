"""What a check is, and the few things that all checks need."""

import pkgutil
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Generic, TypeVar

from clearhead.doctor.catalogue.severity import AGAINST, SECOND, is_failure
from clearhead.doctor.problems import attempt as attempt
from clearhead.doctor.report.findings import Evidence, PossibleCause
from clearhead.doctor.report.findings import Finding as Finding
from clearhead.doctor.report.findings import Status as Status
from clearhead.doctor.report.findings import Where as Where
from clearhead.doctor.report.verdict import BROKE, Checked, Outcome
from clearhead.doctor.spec import Level
from clearhead.doctor.subject import Subject as Subject

SubjectT = TypeVar("SubjectT")
Run = Callable[[SubjectT], list[Finding]]
Causes = tuple[tuple[str, float], ...]
STEADY = ("finite", "deterministic")  # what nearly every check needs
APART = (*STEADY, "rows", "layouts", "norms")
SOUND = (*STEADY, "rows", "layouts", "dependencies")


class Skipped(Exception):  # noqa: N818 - nothing went wrong
    """The check does not apply to this model; the message says why."""


@dataclass(frozen=True)
class Check(Generic[SubjectT]):
    """One question about a model, or about a training.

    `covers`: every id that it can find, that it names among the causes of a finding, or that would make it fail under
    another name. Asking for any of them runs this check.
    """

    id: str  # the fault that it is named after
    name: str  # one word or two
    order: int  # its rank in the sequence; a check that it needs has a smaller one
    covers: tuple[str, ...]
    holds: str  # what is true if it finds nothing
    run: Callable[[SubjectT], list[Finding]]  # raises `Skipped`
    needs: tuple[str, ...] = ()  # names of the checks without which its answer means nothing
    level: Level = "quick"  # the lowest at which it runs
    of_tokens: bool = False  # it needs logits for each token, and does not apply to a model with one output per row

    def checked(self, status: Outcome, note: str, start_time: float) -> Checked:
        """Its outcome, for the report. `start_time`: the `time.perf_counter` at its start."""
        milliseconds = 1000 * (time.perf_counter() - start_time)
        return Checked(self.id, self.name, self.covers, self.holds, status, note, milliseconds)


class Registry(Generic[SubjectT]):
    """All checks of one kind of subject. It is the decorator that registers a function as a check."""

    def __init__(self) -> None:
        self._checks: list[Check[SubjectT]] = []

    def __call__(
        self,
        id: str,
        name: str,
        *,
        order: int,
        covers: tuple[str, ...] = (),
        holds: str = "",
        needs: tuple[str, ...] = (),
        level: Level = "quick",
        of_tokens: bool = False,
    ) -> Callable[[Run[SubjectT]], Run[SubjectT]]:
        """See `Check`. `covers` need not repeat `id`; `holds` is the function's docstring unless it is given here."""

        def register(run: Run[SubjectT]) -> Run[SubjectT]:
            sentence = (holds or run.__doc__ or name).partition("\n")[0].rstrip(".")
            ids = tuple(dict.fromkeys((id, *covers)))
            self._checks.append(
                Check(id, name, order, ids, sentence[:1].lower() + sentence[1:], run, needs, level, of_tokens)
            )
            return run

        return register

    def in_order(self) -> tuple[Check[SubjectT], ...]:
        """All registered checks, in the order in which they run."""
        return tuple(sorted(self._checks, key=lambda check: check.order))


model_check = Registry[Subject]()


def load_all(package: str, folders: Iterable[str]) -> None:
    """Import every module below a package, so that its checks register themselves."""
    for module in pkgutil.walk_packages(folders, f"{package}."):
        import_module(module.name)


def answer(
    check: Check[SubjectT], subject: SubjectT, failed: Container[str], allow: Mapping[str, str]
) -> tuple[Outcome, str, list[Finding]]:
    """Run a check unless one that it needs has failed. Findings that the person allows are waived, with the reason."""
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
    findings = [_weighed(finding, check.name) for finding in findings]
    open_ = [finding for finding in findings if finding.id not in allow]
    if open_:
        worst: Outcome = "fail" if any(finding.status == "fail" for finding in open_) else "warn"
        return worst, open_[0].title, findings
    return ("waived", f"{findings[0].id}: {allow[findings[0].id]}", findings) if findings else ("pass", "", [])


def _weighed(finding: Finding, check: str) -> Finding:
    """With what it contradicts, and a warning if that is not enough for a failure."""
    own = finding.evidence
    second = own.second or SECOND.get(f"{check} {finding.id}", "")
    evidence = replace(own, against=own.against or AGAINST.get(check, ""), second=second)
    is_sure = is_failure(check, finding.id, evidence.against, evidence.second)
    return replace(finding, evidence=evidence, status=finding.status if is_sure else "warn")


def joined(before: Sequence[Finding], findings: Iterable[Finding], check: str, allow: Container[str]) -> list[Finding]:
    """The findings so far and those of one more check.

    A fault is reported by the check that found it first, but a failure replaces a warning.
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
    against: str = "",
    second: str = "",
) -> Finding:
    """A finding, named after the most likely of its causes.

    Args:
        witness: what was seen, in one sentence.
        against: what that contradicts; as `AGAINST` says of the check if it is empty. What contradicts nothing is a
            warning.
        second: what else was observed; see `is_failure`.
    """
    ranked: Causes = ((causes, 1.0),) if isinstance(causes, str) else tuple(sorted(causes, key=lambda c: -c[1]))
    evidence = Evidence(value, threshold, floor, witness, against, second)
    possible = tuple(PossibleCause(id, round(score, 3)) for id, score in ranked)
    return Finding(ranked[0][0], status, evidence, where or Where(), possible, picture)
