"""Contracts, probes and findings: torch and a callable are all that an examination needs.

Importing this loads nothing else; a name loads what it needs when it is first touched.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is touched
    from clearhead.doctor.comparison.models import compare
    from clearhead.doctor.examination import check
    from clearhead.doctor.probes.loss import xray
    from clearhead.doctor.report.comparison import Comparison
    from clearhead.doctor.report.findings import Finding
    from clearhead.doctor.report.verdict import Report
    from clearhead.doctor.spec import Spec
    from clearhead.doctor.training.preflight import PreflightReport, preflight
    from clearhead.doctor.training.watching import watch

_HOME_OF = {
    "Comparison": "report.comparison",
    "Finding": "report.findings",
    "PreflightReport": "training.preflight",
    "Report": "report.verdict",
    "Spec": "spec",
    "check": "examination",
    "compare": "comparison.models",
    "preflight": "training.preflight",
    "watch": "training.watching",
    "xray": "probes.loss",
}

__all__ = [
    "Comparison",
    "Finding",
    "PreflightReport",
    "Report",
    "Spec",
    "check",
    "compare",
    "preflight",
    "watch",
    "xray",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"clearhead.doctor.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'clearhead.doctor' has no attribute '{name}'")
