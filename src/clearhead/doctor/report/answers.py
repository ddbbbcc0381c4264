"""What a report says of one fault of the catalogue: it is there, it is not, or that is open. Imports no torch.

A fault is denied only by checks that can find it, that were made, and that found nothing at all. What was skipped,
blocked or broke, and what found something else instead, denies nothing. And while a failure stands, nothing is denied:
one fault looks like another, and hides a third. A warning of another check hides nothing.
"""

from typing import Literal

from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.verdict import Checked, Report

Answer = Literal["yes", "no", "unknown"]
WATCHED = "a model alone does not show it; 'clearhead doctor train SCRIPT' watches a training"
HOLDS = {  # by the name of a check: what it showed, if it found nothing
    "finite": "every logit is a number",
    "storage": "every module is registered and stands once, and what is tied is one tensor",
    "deterministic": "the same batch gives the same bits twice in eval()",
    "rows": "no row of a batch moves another, nor does its place",
    "layouts": "no reshape moves numbers from token to token",
    "norms": "each norm works on one token",
    "query norms": "keys are normalised as queries are",
    "attention": "weights sum to one over the keys, of scores of the right size",
    "dependencies": "each logit depends on the tokens that it should, and on no other",
    "sources": "the whole source moves every logit",
    "paths": "it is the same on every path that was run",
    "stress": "it is the same with scores past 1e4",
    "padded rows": "padding in one row moves no other, and leaves gradients finite",
    "paddings": "tokens under the padding move nothing",
    "positions": "the order of the tokens matters",
    "embeddings": "embeddings have the right size, and every position a row",
    "caches": "with the cache the logits are those without it",
    "generations": "it generates what its logits say, and each request alike",
    "losses": "its loss is a cross-entropy of the right targets",
    "decoder targets": "the decoder is asked for what it has not read",
    "gradients": "every weight has an effect and a gradient",
    "births": "what is zero at first has a gradient soon",
    "residuals": "every token reaches its own logits around each sublayer",
    "streams": "each layer adds to the stream in one way, without dropout on it",
    "activations": "no two linear maps follow each other",
    "fresh loss": "a fresh model's loss is near ln V",
    "again": "it is so for other draws of weights and tokens",
    "precision": "in bfloat16 it is no worse at the end of a row",
    "tasks": "it learns what such a model must learn",
}


def answered(id: str, report: Report) -> tuple[Answer, str]:
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
        shown = "; ".join(HOLDS.get(check.name, f"'{check.name}' found nothing") for check in passed)
        later = sorted({check.note for check in able if check.note.startswith("at --level")})
        return "no", shown + (f"; more is examined {later[0]}" if later else "")
    notes = {_reason(report, check) for check in in_the_way or able}
    return "unknown", "; ".join(sorted(notes - {""})) or WATCHED


def _reason(report: Report, check: Checked) -> str:
    """Why a check does not answer the question."""
    if check.status not in ("fail", "warn"):
        return check.note
    instead = " and ".join(dict.fromkeys(finding.id for finding in report.of_check(check.name)))
    return f"'{check.name}' found {instead or 'a fault'}"


def _evidence(finding: Finding) -> str:
    place = f", in {finding.where.place}" if finding.where.place else ""
    return f"{finding.evidence.witness}{place}"
