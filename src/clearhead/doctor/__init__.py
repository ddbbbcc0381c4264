"""Contracts, instruments and findings: torch and a callable are all that an examination needs.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clearhead.doctor.reports.comparison import Comparison
from clearhead.doctor.reports.findings import Finding, Report
from clearhead.doctor.spec import Spec

if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is touched
    from clearhead.doctor.before_training import PreflightReport, preflight
    from clearhead.doctor.comparing.models import compare
    from clearhead.doctor.examination import check
    from clearhead.doctor.instruments.loss import xray
    from clearhead.doctor.training.watching import watch

_HOME_OF = {
    "PreflightReport": "before_training",
    "check": "examination",
    "compare": "comparing.models",
    "preflight": "before_training",
    "watch": "training.watching",
    "xray": "instruments.loss",
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
