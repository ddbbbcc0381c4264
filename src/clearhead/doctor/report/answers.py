"""What a report says of one fault of the catalogue: it is there, it is not, or that is open. Imports no torch.

A fault is denied only by checks that can find it, that were made, and that found nothing at all. What was skipped,
blocked or broke, and what found something else instead, denies nothing. And while a failure stands, nothing is denied:
one fault looks like another, and hides a third. A warning of another check hides nothing.
"""

from typing import Literal

from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.verdict import Checked, Examined

Answer = Literal["yes", "no", "unknown"]
WATCHED = "a model alone does not show it; 'clearhead doctor train SCRIPT' watches a training"


def answered(id: str, report: Examined) -> tuple[Answer, str]:
    """Whether a fault is there, and how that is known."""
    finding = next((finding for finding in report.findings if finding.id == id), None)
    if finding is not None:
        return "yes", _evidence(finding)
    near = next((finding for finding in report.findings if id in dict(finding.causes)), None)
    if near is not None:
        return "unknown", f"what was found fits {near.id} better, {dict(near.causes)[id]:.0%} {id}"
    able = [check for check in report.checks if id in check.covers]
    in_the_way = [check for check in able if check.is_missing or check.status not in ("pass", "skip")]
    passed = [check for check in able if check.status == "pass"]
    fault = next((finding for finding in report.findings if finding.status == "fail"), None)
    if passed and not in_the_way and fault is not None:
        return "unknown", (
            f"it was looked for and not found, but {fault.id} was, and may hide it; mend that and ask again"
        )
    if passed and not in_the_way:
        shown = "; ".join(check.holds for check in passed)
        later = sorted({check.note for check in able if check.note.startswith("at --level")})
        return "no", shown + (f"; more is examined {later[0]}" if later else "")
    notes = {_reason(report, check) for check in in_the_way or able}
    return "unknown", "; ".join(sorted(notes - {""})) or WATCHED


def _reason(report: Examined, check: Checked) -> str:
    """Why a check does not answer the question."""
    if check.status not in ("fail", "warn"):
        return check.note
    instead = " and ".join(dict.fromkeys(finding.id for finding in report.of_check(check.name)))
    return f"'{check.name}' found {instead or 'a fault'}"


def _evidence(finding: Finding) -> str:
    suffix = f", in {finding.where.place}" if finding.where.place else ""
    return f"{finding.evidence.witness}{suffix}"
