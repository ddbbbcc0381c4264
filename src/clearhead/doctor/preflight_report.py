"""What the preflight found: faults with a name, a place and a remedy, or nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One fault. `id` is stable and short; the rest is for a person."""

    id: str
    title: str
    where: str
    remedy: str

    @property
    def sentence(self) -> str:
        """What, where, what to do."""
        return f"{self.title}: {self.where}; {self.remedy}"


@dataclass(frozen=True)
class PreflightReport:
    """The faults found, and for each check that was made and found none, what it showed."""

    findings: tuple[Fault, ...]
    shown: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether there is no fault."""
        return not self.findings

    def line(self) -> str:
        """The examination in one line."""
        if self.passed:
            return "preflight passed: " + ", ".join(self.shown)
        return f"preflight failed ({', '.join(finding.id for finding in self.findings)}): {self.findings[0].sentence}"
