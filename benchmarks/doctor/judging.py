"""What a report of the doctor is worth, measured against the fault that was planted. Knows the report's JSON only.

A finding counts if the healthy twin has none with the same id and status: what is said of both says nothing about the
fault. Findings and their causes are taken in the order in which a person reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, Protocol, TypedDict

from faults import Tier


class Expected(Protocol):
    """What a fault is held against; see `faults.Fault`."""

    @property
    def id(self) -> str: ...
    @property
    def also(self) -> tuple[str, ...]: ...
    @property
    def modules(self) -> tuple[str, ...]: ...
    @property
    def tier(self) -> Tier: ...


class Cause(TypedDict):
    id: str
    score: float


class Where(TypedDict):
    module: NotRequired[str | None]


class Finding(TypedDict):
    id: str
    status: str
    where: NotRequired[Where | None]
    causes: NotRequired[list[Cause]]


class Check(TypedDict):
    status: str


class Report(TypedDict):
    """The part of the doctor's JSON that is used here."""

    verdict: str
    findings: list[Finding]
    checks: list[Check]


@dataclass(frozen=True)
class Verdict:
    """Of one mutant.

    Attributes:
        detected: by a finding that its healthy twin has not: a fail where there is an exact check, at least a warning
            where there are only signs.
        module: whether the first such finding names a guilty module; None where the model itself is the guilty one.
        cause: the place of the right cause among those named, from 1; None if it is not named.
    """

    detected: bool
    module: bool | None
    cause: int | None


def new_findings(report: Report, twin: Report) -> list[Finding]:
    """The report's failures and warnings, without those of the healthy twin; failures first, else in its order."""
    known = {(finding["id"], finding["status"]) for finding in twin["findings"]}
    new = [
        finding
        for finding in report["findings"]
        if finding["status"] in ("fail", "warn") and (finding["id"], finding["status"]) not in known
    ]
    return sorted(new, key=lambda finding: finding["status"] != "fail")


def judge(fault: Expected, report: Report, twin: Report) -> Verdict:
    """Hold a mutant's report against its fault."""
    findings = new_findings(report, twin)
    enough = ("fail",) if fault.tier == "exact" else ("fail", "warn")
    detected = any(finding["status"] in enough for finding in findings)
    blamed = [pattern for pattern in fault.modules if pattern]
    module: bool | None = None
    if blamed:
        where = (findings[0].get("where") or {}) if findings else {}
        module = detected and any(within(where.get("module"), pattern) for pattern in fault.modules)
    right = [rank for rank, cause in enumerate(named_causes(findings), start=1) if cause in (fault.id, *fault.also)]
    return Verdict(detected, module, right[0] if detected and right else None)


def named_causes(findings: Sequence[Finding]) -> list[str]:
    """Ids of causes in reading order, each once; a finding that names none means itself."""
    ids: list[str] = []
    for finding in findings:
        causes = sorted(finding.get("causes") or [], key=lambda cause: -cause["score"])
        ids += [cause["id"] for cause in causes] or [finding["id"]]
    return list(dict.fromkeys(ids))


def within(module: str | None, pattern: str) -> bool:
    """Whether a module's path is the pattern, in which `*` is any one name, or leads further inside it.

    The model itself, "", is only itself.
    """
    if module is None:
        return False
    names, parts = (path.split(".") if path else [] for path in (module, pattern))
    if not parts or len(names) < len(parts):
        return names == parts
    return all(part in ("*", name) for name, part in zip(names, parts, strict=False))
