"""What other tools are given is sound, and what they say is counted fairly; the tools themselves need not be there."""

import math
from pathlib import Path

import pytest
import torch
from batches import BATCHES, Batch, TokensToLogits
from faults import HERE, HOSTS, built, faults_of, kind_of
from other_tools import Score, judge_tool, measures, only_theirs
from peers import Complaint, Factory, Tool
from torch import nn


def test_every_host_has_a_batch() -> None:
    assert set(BATCHES) == set(HOSTS)


@pytest.mark.sampled
@pytest.mark.parametrize("host", HOSTS)
def test_a_batch_fits_its_host_and_its_loss_is_that_of_guessing(host: str) -> None:
    torch.manual_seed(3)
    model, batch = built(HERE / "hosts" / f"{host}.py").eval(), BATCHES[host]()
    output = model(**batch.inputs)
    logits = batch.logits(output)
    assert logits.shape[:2] == batch.targets.shape
    assert abs(batch.loss(output).item() - math.log(logits.shape[-1])) < 0.7
    tokens = batch.inputs[batch.tokens]
    alone = TokensToLogits(model, batch)(tokens.T if batch.batch_axis else tokens)
    assert alone.shape == logits.shape
    if kind_of(host) == "causal":
        torch.testing.assert_close(alone, logits)


def complains(always: list[Complaint], of_batch_norms: list[Complaint]) -> Tool:
    """A tool that says some things of every model, and others of those that have a batch norm."""

    def examine(factory: Factory, batch: Batch, kind: str) -> list[Complaint]:
        has_one = any(isinstance(module, nn.BatchNorm1d) for module in factory().modules())
        return always + (of_batch_norms if has_one else [])

    return Tool("pytest", examine)


def test_what_is_said_of_the_healthy_host_too_is_no_detection(tmp_path: Path) -> None:
    complaints = [Complaint("overfit", "fail")]
    score = judge_tool(complains(complaints, complaints), ["tagger"], tmp_path)
    assert score.alarms == {"tagger": ["overfit"]}
    assert not any(score.failed.values())
    assert not any(score.warned.values())


def test_a_new_failure_is_a_detection_and_a_new_warning_half_of_one(tmp_path: Path) -> None:
    faults = list(faults_of("tagger"))
    for status in ("fail", "warn"):
        score = judge_tool(complains([], [Complaint("norm", status)]), ["tagger"], tmp_path)
        detections = score.failed if status == "fail" else score.warned
        assert [title for title, shown in detections.items() if shown] == ["tagger/batch-norm-without-statistics"]
    assert not any(score.failed.values())
    assert len(measures([score], faults)) == 3


def test_what_only_another_tool_shows_is_listed() -> None:
    doctor, other = Score("doctor", warned={"a": True, "b": False}), Score("other", warned={"a": True, "b": True})
    assert only_theirs([doctor, other]) == ["- b: other"]
    assert only_theirs([other, doctor]) == ["Nothing."]
