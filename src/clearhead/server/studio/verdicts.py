"""What the doctor says of a run, for the picture of its architecture."""

from clearhead.doctor.report.report import Report
from clearhead.inspection.architecture import Mark

# The boxes that a family of faults speaks of, by the letter that its ids begin with; the others speak of the logits.
KINDS = {
    "A": ("attention",),
    "E": ("embedding", "head", "ngrams", "segments"),
    "F": ("feedforward",),
    "M": ("softmax",),
    "N": ("norm", "add"),
    "P": ("learned", "sinusoidal", "relative", "alibi", "scores"),
    "S": ("attention",),
}
WHOLE = ("logits",)


def marks_of(report: Report) -> list[Mark]:
    """The verdict, each finding at its module, and each check that passed at the boxes that it speaks of."""
    verdict = Mark("", "pass" if report.verdict == "healthy" else "fail", "the doctor", report.summary)
    findings = [
        Mark(
            finding.where.module or "",
            finding.status,
            f"{finding.id} {finding.title}",
            f"{finding.evidence.witness}; {finding.fix}",
            KINDS.get(finding.id[0], WHOLE),
        )
        for finding in report.findings
    ]
    passed = [
        Mark("", "pass", f"the check {check.name}", check.holds, _kinds(check.covers))
        for check in report.checks
        if check.status == "pass"
    ]
    return [verdict, *findings, *passed]


def _kinds(ids: tuple[str, ...]) -> tuple[str, ...]:
    families = {id[0] for id in ids}
    return tuple(kind for family, kinds in KINDS.items() if family in families for kind in kinds) or WHOLE
