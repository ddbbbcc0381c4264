"""Published bugs, replayed, and those of tutorials: the doctor names each, and accuses nothing that is mended."""

import os
from functools import cache
from pathlib import Path

import pytest
import torch
from faults import HERE, all_faults, built, write
from judging import Report, judge, named_causes, new_findings
from real_bugs import Bug, ahead_of_all, bugs
from torch import nn

from clearhead import doctor
from clearhead.doctor.load.loading import load, load_function
from clearhead.doctor.loss_examination import examine_loss

REPLAYS = [bug for bug in bugs() if not bug.needs_old]
FAULTS = {fault.title: fault for fault in all_faults()}
TUTORIALS = {  # where the tutorials that this library descends from went wrong -> the first guilty module
    "tutorial_gpt/cross-attends-to-its-own-input": "layers.0.cross_attn",
    "tutorial_gpt/norm-over-time-and-features": "layers.0.norm1",
    "tutorial_translation/only-the-query-normalized": "decoder.0.attention",
    "tutorial_translation/only-the-encoders-query-normalized": "encoder.0.attention",
    "tutorial_translation/norm-over-time-and-features": "encoder.0.residuals.0.norm",
    "tutorial_translation/smoothing-counts-padding": "criterion",
}


def of_model(model: nn.Module) -> Report:
    report: Report = doctor.check(model).as_json()  # type: ignore[assignment]
    return report


def of_bug(bug: Bug, version: str) -> Report:
    target = f"{HERE / 'real' / bug.name}.py:{version}"
    if bug.ask == "loss":
        report: Report = examine_loss(load_function(target), target).as_json()  # type: ignore[assignment]
        return report
    torch.manual_seed(0)
    return of_model(load(target))


@cache
def of_host(host: str) -> Report:
    torch.manual_seed(0)
    return of_model(built(HERE / "hosts" / f"{host}.py"))


def failures(report: Report) -> list[str]:
    return [finding["id"] for finding in report["findings"] if finding["status"] == "fail"]


def test_there_are_enough_of_them_and_each_is_told() -> None:
    assert len(REPLAYS) >= 14
    assert len({bug.name for bug in bugs()}) == len(bugs()) >= 20
    files = {path.stem for path in (HERE / "real").glob("[!_]*.py")}
    assert files == {bug.name for bug in bugs() if bug.ask != "hf"}
    for bug in bugs():
        if bug.ask != "hf":
            text = (HERE / "real" / f"{bug.name}.py").read_text(encoding="utf-8")
            assert bug.reference in text, f"{bug.name} does not say where it was published"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bug", REPLAYS, ids=lambda bug: bug.name)
def test_a_published_bug_is_named_and_its_mended_version_is_not_accused(bug: Bug) -> None:
    buggy, fixed = of_bug(bug, "buggy"), of_bug(bug, "fixed")
    assert not failures(fixed)
    verdict = judge(bug, buggy, fixed)
    assert verdict.detected, named_causes(buggy["findings"])
    assert verdict.cause == 1, named_causes(new_findings(buggy, fixed))
    assert verdict.module is not False, [finding.get("where") for finding in buggy["findings"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("title", TUTORIALS)
def test_what_the_tutorials_did_wrong_is_found_at_its_place(title: str, tmp_path: Path) -> None:
    fault, module = FAULTS[title], TUTORIALS[title]
    torch.manual_seed(0)
    report, twin = of_model(built(write(fault, tmp_path))), of_host(fault.host)
    assert not failures(twin)
    verdict = judge(fault, report, twin)
    assert verdict.detected
    assert verdict.cause == 1, named_causes(new_findings(report, twin))
    first = new_findings(report, twin)[0]
    assert first["status"] == "fail"
    assert (first.get("where") or {}).get("module") == module


def test_the_old_version_is_found_first_and_forgotten_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "kept")
    with ahead_of_all(tmp_path):
        assert os.environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}kept"
    assert os.environ["PYTHONPATH"] == "kept"
    monkeypatch.delenv("PYTHONPATH")
    with ahead_of_all(tmp_path):
        assert os.environ["PYTHONPATH"] == str(tmp_path)
    assert "PYTHONPATH" not in os.environ
