"""What a check is, and the few things that all of them need."""

from collections.abc import Callable
from dataclasses import dataclass

from clearhead.doctor.patient import Patient
from clearhead.doctor.reports.findings import Evidence, Finding, Status, Where
from clearhead.doctor.spec import Level

Causes = tuple[tuple[str, float], ...]


class Skipped(Exception):  # noqa: N818 - nothing went wrong
    """The check has nothing to say about this model, and why."""


@dataclass(frozen=True)
class Check:
    """One question to a model.

    Args:
        id: the fault that it is named after.
        name: in a word or two.
        covers: every id that it can find.
        run: the findings; raises `Skipped`.
        needs: names of checks whose failure would make this one's answer worthless.
        level: the least at which it is made.
    """

    id: str
    name: str
    covers: tuple[str, ...]
    run: Callable[[Patient], list[Finding]]
    needs: tuple[str, ...] = ()
    level: Level = "quick"


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
