"""What the verbs decide where several processes train together, or are started again: asked of one process."""

import json
import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from workflow_helpers import tiny, trained, write_text

from clearhead.config import RunConfig
from clearhead.errors import ClearheadError, DataError, InterruptedRunError, UsageError
from clearhead.inference import Evaluation, NothingToEvaluateError
from clearhead.models import LanguageModel
from clearhead.training import Notice, Processes, Stepped, launchers
from clearhead.workflows import Run, budget, sharing, train
from clearhead.workflows.events import WorkflowEvent
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.tasks import Task

SECOND = Processes(1, 2)


def run_with(start: dict[str, Any]) -> RunFolder:
    """A run as a training leaves it that began so."""
    folder = Path("runs/my-1")
    folder.mkdir(parents=True)
    (folder / "clearhead.toml").touch()
    record = {"kind": "start", "step": 0, "steps": 9, "process": 1, "launchers": sorted(launchers()), **start}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    return RunFolder(folder)


@pytest.mark.parametrize(
    ("restarts", "machines", "start", "is_known"),
    [
        ("1", "1", {}, True),
        ("0", "1", {}, False),
        ("0", "2", {}, True),  # of two machines, the other one counted the restart
        ("0", "2", {"process": os.getpid()}, False),  # this very process trained it, before another one
        ("1", "1", {"launchers": ["elsewhere/1/2"]}, False),
        ("1", "2", {"launchers": ["elsewhere/1/2", *launchers()]}, True),
        ("1", "1", {"launchers": None}, False),
    ],
)
def test_a_run_is_known_by_what_started_its_processes(
    restarts: str, machines: str, start: dict[str, Any], is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
    monkeypatch.setenv("GROUP_WORLD_SIZE", machines)
    run = run_with(start)
    for folder in (None, run.folder):
        before = sharing.started_before(folder)
        assert (before is not None and before.name == "my-1") == is_known


def test_minutes_go_on_counting_where_processes_are_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over when they come back, so the training ends as soon as a step has been measured."""
    monkeypatch.setattr(budget, "operations_per_second", lambda config: 1e15)
    monkeypatch.setattr(budget, "seconds_per_step", lambda config, task, patience: 0.001)

    def stop(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            Path("run/stop").touch()

    write_text(40_000)
    options = {**tiny(), "train": {"batch_size": 4, "threads": 1}}
    begun = time.time()
    with pytest.raises(InterruptedRunError):
        train("my.txt", out="run", minutes=0.1, options=options, check=False, on_event=stop)
    log = Path("run/metrics.jsonl")
    start, *records = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    assert start["deadline"] == pytest.approx(begun + 6 - budget.FINISH_SECONDS, abs=1)
    start |= {"process": 1, "deadline": time.time() - 1}
    log.write_text("".join(json.dumps(record) + "\n" for record in (start, *records)), encoding="utf-8")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    run = train("my.txt", out="run", minutes=0.1, options=options, check=False, progress=False)
    assert run.config.train.steps == 3 + 1 + budget.TO_PREDICT + 1 < start["steps"]


def test_weights_that_are_shared_out_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.read(tiny(parallel="fsdp", compile="on"), {"model": {"vocab_size": 9}})
    assert not sharing.shares_weights(config)
    monkeypatch.setattr(Processes, "joined", lambda: SECOND)
    with pytest.raises(UsageError, match="a model whose weights are shared out is not compiled"):
        sharing.shares_weights(config)


def test_one_process_says_that_it_shares_nothing_out() -> None:
    events = list[WorkflowEvent]()
    trained(options={"train": {"parallel": "fsdp", "steps": 1}}, on_event=events.append)
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert "one process holds all weights: `train.parallel` is for several, which torchrun starts" in notices


class OneShare:
    """A task whose held-out data this process reads no batch of, and the sum with another process's share."""

    def __init__(self, error: DataError, others: list[float]) -> None:
        self.error, self.others = error, others

    def evaluate(self, *_: object, **__: object) -> Evaluation:
        raise self.error

    def sum(self, own: Tensor) -> Tensor:
        return own + torch.tensor(self.others, dtype=torch.float64)

    rank, world_size = 1, 2


def evaluated(error: DataError, others: list[float]) -> Evaluation:
    share, model = OneShare(error, others), cast("LanguageModel", nn.Linear(1, 1))
    return sharing.evaluate(cast("Task", share), model, RunConfig(), cast("Processes", share))


def test_only_a_share_without_a_token_counts_nothing() -> None:
    assert evaluated(NothingToEvaluateError(), [6.0, 3.0]) == Evaluation(2.0, 3)
    with pytest.raises(DataError, match="the file is gone"):
        evaluated(DataError("the file is gone"), [6.0, 3.0])
    with pytest.raises(NothingToEvaluateError):
        evaluated(NothingToEvaluateError(), [0.0, 0.0])


def test_a_process_that_follows_and_has_no_memory_left_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(group: Processes) -> Run:
        raise MemoryError

    def telling(group: Processes) -> AbstractContextManager[None]:
        return nullcontext()

    monkeypatch.setattr(sharing, "join_processes", lambda: nullcontext(SECOND))
    monkeypatch.setattr(sharing, "telling_once", telling)
    monkeypatch.setattr(sharing, "follow", follow)
    with pytest.raises(ClearheadError, match="the memory is too small"):
        train("my.txt")
