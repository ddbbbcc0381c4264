"""The examination: checks in an order in which each can trust those before it."""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from torch import nn

from clearhead.doctor.calling.batches import Given, GivenBatch
from clearhead.doctor.calling.names import is_told_more
from clearhead.doctor.catalogue.faults import CATALOGUE, refuse_unknown
from clearhead.doctor.catalogue.severity import OF_MASKS
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.checks.base import Check, answer, joined
from clearhead.doctor.load.devices import find_device
from clearhead.doctor.load.unwrap import unwrapped
from clearhead.doctor.mending import mended
from clearhead.doctor.preparation import prepare, redrawn
from clearhead.doctor.readings import readings
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.report import Report
from clearhead.doctor.report.verdict import BROKE, OUT_OF_TIME, Checked, Outcome
from clearhead.doctor.spec import LEVELS, Level, Spec
from clearhead.doctor.state_guard import guarded
from clearhead.doctor.subject import Subject
from clearhead.errors import UsageError

NAMES = frozenset(check.name for check in CHECKS)
LEFT_BEHIND = ("D18", "K06", "T08")  # by a call: in inputs, in caches, in the model
OF_LENGTHS = ("caches", "generations")  # compare rows of unequal lengths


def check(
    model: nn.Module,
    spec: Spec | None = None,
    *,
    level: Level = "quick",
    only: Sequence[str] = (),
    seed: int = 0,
    batch: Given | None = None,
    device: str = "cpu",
    seconds: float | None = None,
) -> Report:
    """Examine any PyTorch Transformer that reads token ids. The model itself is left as it is, bit for bit.

    Args:
        model: yours; its calling convention is inferred by calling a copy.
        spec: what it is meant to be; what is not said is read from it and told as an assumption.
        level: quick; standard looks at longer rows of large models as well; deep computes in bfloat16.
        only: ids of the catalogue, or names of checks; the checks that can find them, and those that these rest on, are
            made. Every fault that they find is told, whichever it is.
        seed: of the inputs and of the noise on the copy's weights.
        batch: of yours: ids (B, T), (source, target), or a dict by the names that `forward` has. Its tokens are what
            the model is given, and it is run as it is besides.
        device: cpu, cuda, cuda:N or mps; the copies are examined there.
        seconds: after which no further check is begun. What was not examined is told as skipped.

    Raises:
        UsageError: an unknown kind, level, id or device.
        DataError: it has no weights to work with, or no way was found to call it; then the sentence holds an adapter.
            Or the batch is none for it, or the device is not there.
    """
    spec = spec or Spec()
    refuse_unknown(spec.kind, level, (*(word for word in only if word not in NAMES), *spec.allow))
    begun = time.perf_counter()
    target_device, own_batch = find_device(device), None if batch is None else GivenBatch.of(batch)
    whole, model = model, unwrapped(model)
    with guarded(seed, model):
        failed: set[str] = set()
        subject = prepare(model, spec, level, seed, own_batch, target_device, failed)
        deadline = begun + (math.inf if seconds is None else seconds)
        findings, checks, subject = _examine(subject, chosen(only), failed, deadline)
        kind = subject.kind
    paths = (subject.convention.sentence, f"eval(), float32, {device.upper()}", *subject.journal.paths)
    if whole is not model:
        paths = (*paths, f"without the {type(whole).__name__} around it")
    again = "doctor.check(model, level={!r}, only=[{!r}], seed={})"
    findings = tuple(replace(finding, repro=again.format(level, finding.id, seed)) for finding in findings)
    took = time.perf_counter() - begun
    assumptions = (*subject.journal.assumptions, *filter(None, [subject.assumed_kind]))
    return Report(type(model).__name__, kind, findings, checks, assumptions, paths, took, tuple(only))


def chosen(only: Sequence[str]) -> list[Check[Subject]]:
    """The checks that are named or can find one of these, and those that they rest on; all of them if nothing is.

    Raises:
        UsageError: nothing of it can be found in a model.
    """
    if not only:
        return list(CHECKS)
    names = {check.name for check in CHECKS if set(only) & {check.name, *check.covers}}
    if not names:
        raise UsageError(
            f"{only[0]}, {CATALOGUE[only[0]].title}, is looked for in no model; if it is a fault of a training, "
            "watch the training: 'clearhead doctor train SCRIPT'"
        )
    for check_ in reversed(CHECKS):
        if check_.name in names:
            names |= set(check_.needs)
    return [check_ for check_ in CHECKS if check_.name in names]


def _examine(
    subject: Subject, checks: Sequence[Check[Subject]], failed: set[str], deadline: float
) -> tuple[tuple[Finding, ...], tuple[Checked, ...], Subject]:
    """The findings and the checks, and the subject as far as it was mended meanwhile."""
    findings: list[Finding] = []
    checked: list[Checked] = []
    for check in checks:
        begun = time.perf_counter()
        status, note, new = ("skip", OUT_OF_TIME, []) if begun > deadline else _make(subject, check)
        if status == "fail":
            new = _confirmed(subject, check, new)
            fails = any(fault.status == "fail" and fault.id not in subject.spec.allow for fault in new)
            status = "fail" if fails else "warn"
        with ExitStack() as undo:
            repaired = mended(subject, check.name, new, undo) if status in ("fail", "warn") else None
            again, _, others = _make(repaired, check) if repaired is not None else (status, "", [])
            if repaired is not None and not _stands_in_the_way(repaired, check, again):
                subject = repaired
                undo.pop_all()
            elif repaired is not None and check.name == "rows" and not _causes(new) & _causes(others):
                new += _confirmed(repaired, check, others)  # the mend helped, and showed what was behind the fault
                failed.add(check.name)
            elif _stands_in_the_way(subject, check, status):
                failed.add(check.name)
        findings = joined(findings, new, check.name, subject.spec.allow)
        checked.append(check.checked(status, note, begun))
    ranked = sorted(findings, key=lambda finding: finding.status != "fail")
    return tuple(ranked), tuple(checked), subject


def _confirmed(subject: Subject, check: Check[Subject], findings: list[Finding]) -> list[Finding]:
    """Failures, if the check fails with other weights and tokens in rows of another length as well; else warnings.

    Which fault it names then may differ, as one fault has several symptoms; and a warning of the same fault will do.
    What calls leave behind is not asked for again: it is there already. And if the check is content with the model
    where what was guessed of it is read in another way, its failures are warnings as well; and so are those of masks
    that its caller may give it by names which its signature does not say.
    """
    with redrawn(subject) as second:
        again, _, others = _make(second, check)
    ids = {*LEFT_BEHIND, *(cause.id for fault in others for cause in fault.causes)}
    findings = [
        finding if again == "fail" or finding.id in ids else replace(finding, status="warn") for finding in findings
    ]
    for what, reading in readings(subject):
        _, note, others = _make(reading, check)
        ids = {fault.id for fault in others if fault.status == "fail"}
        if not note.startswith(BROKE):
            but = f"but not if it is read {what}"
            findings = [finding if finding.id in ids else _doubted(finding, but) for finding in findings]
    if check.name in OF_MASKS and is_told_more(subject.model):
        findings = [_doubted(finding, "but a mask may be among what forward takes unnamed") for finding in findings]
    return findings


def _doubted(finding: Finding, but: str) -> Finding:
    """A finding that is none where something is read, or given, in another way."""
    if finding.status == "warn":
        return finding
    evidence = replace(finding.evidence, witness=f"{finding.evidence.witness}; {but}")
    return replace(finding, status="warn", evidence=evidence)


def _causes(findings: Sequence[Finding]) -> set[str]:
    return {cause.id for finding in findings for cause in finding.causes}


def _stands_in_the_way(subject: Subject, check: Check[Subject], status: Outcome) -> bool:
    """Whether what needs this check cannot be judged. Dropout is taken out; what else is random stays so."""
    if check.name == "deterministic":
        return status not in ("pass", "skip") and not subject.drops_in_evaluation
    return status in ("fail", "waived", "blocked")


def _make(subject: Subject, check: Check[Subject]) -> tuple[Outcome, str, list[Finding]]:
    if LEVELS.index(check.level) > LEVELS.index(subject.level):
        return "skip", f"at --level {check.level}", []
    if check.of_tokens and subject.gives_rows:
        return "skip", "it gives one output for each row", []
    if check.name in OF_LENGTHS and subject.is_seeded:
        return "skip", "its random numbers are others in rows of another length", []
    return answer(check, subject, subject.failed, subject.spec.allow)
