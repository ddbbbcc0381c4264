"""Contracts, probes and findings: torch and a callable are all that an examination needs.

Importing this loads nothing else; a name loads what it needs when it is first touched.
"""

from clearhead.lazy import attach

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is first touched
    from clearhead.doctor.comparison.models import compare as compare
    from clearhead.doctor.examination import check as check
    from clearhead.doctor.probes.loss import xray as xray
    from clearhead.doctor.report.comparison import Comparison as Comparison
    from clearhead.doctor.report.findings import Finding as Finding
    from clearhead.doctor.report.report import Report as Report
    from clearhead.doctor.spec import Spec as Spec
    from clearhead.doctor.training.preflight import PreflightReport as PreflightReport
    from clearhead.doctor.training.preflight import preflight as preflight
    from clearhead.doctor.training.watching import watch as watch

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "comparison.models": ["compare"],
        "examination": ["check"],
        "probes.loss": ["xray"],
        "report.comparison": ["Comparison"],
        "report.findings": ["Finding"],
        "report.report": ["Report"],
        "spec": ["Spec"],
        "training.preflight": ["PreflightReport", "preflight"],
        "training.watching": ["watch"],
    },
)
