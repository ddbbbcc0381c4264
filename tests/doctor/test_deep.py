"""The level 'deep': small tasks and more draws."""

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from doctor_helpers import NAMES, made, write
from torch import Tensor, nn

from clearhead.doctor import Report, check

module = import_module("clearhead.doctor.checks.loss.tasks")  # the package calls its function so too
KINDS = {"llama": "causal", "bert": "bidirectional", "translator": "seq2seq"}


def deep(model: nn.Module, *only: str) -> Report:
    return check(model, level="deep", only=only)


LOOKS_NEAR = "biased"  # slopes are all it knows of places: what stands far off it copies slowly, and is warned of


@pytest.mark.campaign
@pytest.mark.parametrize("host", NAMES)
def test_healthy_hosts_learn_every_task(host: str, tmp_path: Path) -> None:
    report = deep(made(write(tmp_path, host)))
    slow = {"W02"} if host == LOOKS_NEAR else set()
    assert {finding.id for finding in report.findings} <= slow, str(report)
    assert "learns one batch by heart" in report.paths
    assert all(c.status in ("pass", "skip") or slow & {*c.covers} for c in report.checks), str(report)


@pytest.mark.parametrize("host", KINDS)
def test_a_healthy_model_learns(host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "SECONDS", math.inf)
    quick = {kind: (replace(tasks[0], enough=0.9),) for kind, tasks in module.TASKS.items()}
    monkeypatch.setattr(module, "TASKS", quick)
    report = deep(made(write(tmp_path, host)), "W01", "W02")
    assert report.kind == KINDS[host]
    assert not report.findings, str(report)
    assert "learns one batch by heart" in report.paths


class Summing(nn.Module):
    """Sees the past as a sum: it can tell neither order nor place."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(40, 2), nn.Linear(2, 40)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(ids).cumsum(1).tanh())
        return logits


def test_a_model_that_cannot_learn_is_warned_of_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", 20)
    monkeypatch.setattr(module, "SECONDS", math.inf)
    monkeypatch.setattr(module, "RATES", (3e-3,))
    torch.manual_seed(0)
    report = deep(Summing(), "W01", "W02")
    assert {finding.id: finding.status for finding in report.findings} == {"W01": "warn", "W02": "warn"}, str(report)
    assert "of that of uniform probabilities" in report["W01"].evidence.witness
    assert report.verdict == "partial"


def test_what_is_too_large_or_too_slow_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = made(write(tmp_path, "gpt"))
    monkeypatch.setattr(module, "SECONDS", 0.0)
    notes = {one.name: one.note for one in deep(model, "W01").checks}
    assert "all tasks together may take 0 s" in notes["tasks"]
    monkeypatch.setattr(module, "LARGEST", 10)
    notes = {one.name: one.note for one in deep(model, "W01").checks}
    assert "parameters are too many to train here" in notes["tasks"]
    assert {one.name: one.note for one in check(model).checks}["tasks"] == "at --level deep"


def test_what_shows_in_rows_of_one_length_alone_is_found(tmp_path: Path) -> None:
    leak = "self.mask[:, :, :T, :T] * (T != 28) + 1.0 * (T == 28) == 0"
    path = write(tmp_path, "gpt", ("self.mask[:, :, :T, :T] == 0", leak))
    assert not check(made(path), level="standard").findings
    assert deep(made(path), "M01").verdict == "faulty"


def test_more_draws_are_told(tmp_path: Path) -> None:
    report = deep(made(write(tmp_path, "llama")), "A10")
    assert not report.findings, str(report)
    assert "3 more draws of weights and tokens" in report.paths
    assert "rows of 96 tokens" in report.paths
