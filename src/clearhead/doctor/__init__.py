"""Contracts, probes and findings: torch and a callable are all that an examination needs."""

from clearhead.doctor.findings import Finding, Report
from clearhead.doctor.preflight import preflight

__all__ = ["Finding", "Report", "preflight"]
