"""A failure is what a second draw of weights, tokens and lengths shows as well; what only one shows is a warning."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from doctor_helpers import HOSTS, made, write

from clearhead.doctor import Finding, Report, check, examination
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.checks.base import finding
from clearhead.doctor.subject import Subject


def examined(monkeypatch: pytest.MonkeyPatch, sees: Callable[[Subject], bool]) -> Report:
    """A healthy model, examined by one check that says what it is told to."""

    def run(subject: Subject) -> list[Finding]:
        return [finding("N01", "a norm over time", against="its kind")] if sees(subject) else []

    norms = next(replace(norm, run=run, needs=()) for norm in CHECKS if norm.name == "norms")
    monkeypatch.setattr(examination, "CHECKS", (norms,))
    return check(made(HOSTS / "gpt.py"))


def statuses(report: Report) -> list[tuple[str, str]]:
    return [(fault.id, fault.status) for fault in report.findings]


def test_what_both_draws_show_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examined(monkeypatch, lambda subject: True)
    assert statuses(report) == [("N01", "fail")]
    assert [done.status for done in report.checks] == ["fail"]


def test_what_one_draw_shows_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examined(monkeypatch, lambda subject: subject.seed == 0)
    assert statuses(report) == [("N01", "warn")]
    assert [done.status for done in report.checks] == ["warn"]
    assert report.exit_code == 0


def test_the_second_draw_has_other_weights_tokens_and_lengths_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects: list[Subject] = []
    weights: list[list[torch.Tensor]] = []

    def sees(subject: Subject) -> bool:
        assert torch.is_grad_enabled()
        subjects.append(subject)
        weights.append([parameter.detach().clone() for parameter in subject.model.parameters()])
        return True

    examined(monkeypatch, sees)
    first, second = subjects
    assert first.calling.T != second.calling.T
    assert first.inputs(2).ids.shape != second.inputs(2).ids.shape
    assert all(not torch.equal(before, after) for before, after in zip(*weights, strict=True))
    assert all(torch.equal(now, then) for now, then in zip(first.model.parameters(), weights[0], strict=True))


def test_a_fault_that_is_there_is_a_failure_still(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", ("torch.tril(torch.ones(BLOCK, BLOCK))", "torch.ones(BLOCK, BLOCK)"))))
    assert ("M01", "fail") in statuses(report)
