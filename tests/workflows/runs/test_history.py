"""A training's log is read once, whatever is asked of it; long ones take little memory and a small page."""

import json
import random
import shutil
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from workflow_helpers import some_records, tiny, trained, write_text

from clearhead.errors import InterruptedRunError
from clearhead.inspection import TrainingReport, render
from clearhead.training import Stepped
from clearhead.workflows import Started, WorkflowEvent, list_all, resume, summary, train
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.history import MAX_POINTS, MAX_SAMPLES, RECENT, History, Means, Thinned


class Reads:
    """Counts the records that are read of any run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        records = RunFolder.records

        def counted(run: RunFolder) -> Iterator[dict[str, Any]]:
            for record in records(run):
                self.count += 1
                yield record

        monkeypatch.setattr(RunFolder, "records", counted)


@pytest.mark.parametrize("steps", [6, 24])
def test_a_log_is_read_a_fixed_number_of_times(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many evaluations there were: once for the report, once more by whoever asks again."""
    reads, options = Reads(monkeypatch), tiny(steps=steps, eval_every=1, save_every=steps)
    run = train(write_text(), out="runs/a", options=options)
    records = 3 * steps + 1  # a step, an evaluation and a sample each, after the start
    assert (reads.count, len(run.metrics.read_text(encoding="utf-8").splitlines())) == (records, records)
    summary(run)
    assert reads.count == 2 * records
    list_all()
    assert reads.count == 3 * records
    reads.count = 0
    resume(run)
    assert reads.count <= 3 * records, "to forget what came after the checkpoint, and for the report"


def test_stopping_reads_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped) and event.step == 8:
            raise BrokenPipeError

    reads = Reads(monkeypatch)
    with pytest.raises(InterruptedRunError):
        trained(options={"train": {"eval_every": 1}}, on_event=gone)
    assert reads.count == 3 * 8 + 1


def test_a_history_tells_what_all_the_records_tell() -> None:
    records = list(some_records(3_000))
    history = History.of(records)
    losses = [record["loss"] for record in records if record["kind"] == "step"]
    assert (history.steps, history.last_step, history.tokens) == (3_000, 3_000, 3_000 * 64)
    assert history.seconds == pytest.approx(1_500)
    assert history.first_loss == losses[0]
    assert history.train_loss == pytest.approx(sum(losses[-RECENT:]) / RECENT)
    assert history.val_loss == history.best_val_loss == pytest.approx(losses[-1] + 0.1)
    assert [loss for _, loss in history.curve(None).train] == losses, "a short line is kept to the point"
    assert history.scores == {"bleu": 1.0}


def test_a_long_history_keeps_little_and_its_page_is_small() -> None:
    def page(steps: int) -> tuple[History, int]:
        history = History.of(some_records(steps))
        curve = history.curve(0.5)
        return history, len(render(TrainingReport("run", "well", (), curve, tuple(history.samples))))

    (_, small), (history, large) = page(10_000), page(80_000)
    assert large < 1.2 * small
    assert len(list(history.samples)) <= MAX_SAMPLES + 1
    assert len(history.curve(0.5).train) <= 2 * MAX_POINTS
    assert history.samples.count == 8_000
    assert list(history.samples)[-1].step == 80_000
    tracemalloc.start()
    History.of(some_records(40_000))
    assert tracemalloc.get_traced_memory()[1] < 5 << 20, "as much as a history keeps, not as was read"
    tracemalloc.stop()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 64, 1_000])
def test_thinned_rows_keep_both_ends_and_spread_evenly(count: int) -> None:
    row: Thinned[int] = Thinned(8)
    for item in range(count):
        row.append(item)
    kept = list(row)
    assert kept == list(range(count)) if count <= 8 else len(kept) <= 9
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)
    assert len({later - earlier for earlier, later in pairwise(kept[:-1])}) <= 1


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1_000])
def test_means_keep_the_mean(count: int) -> None:
    line, draw = Means(8), random.Random(0)
    losses = [draw.random() for _ in range(count)]
    for step, loss in enumerate(losses):
        line.append(step, loss)
    points = list(line)
    assert len(points) <= 16
    assert count >= 16 or [loss for _, loss in points] == losses
    assert not count or points[-1][0] == count - 1
    whole = len(losses) // line.every
    means = [loss for _, loss in points[:whole]]
    assert sum(means) * line.every == pytest.approx(sum(losses[: whole * line.every]))


def test_the_list_tells_where_a_resume_begins() -> None:
    """A crash came after step 8, and the last checkpoint is of step 6."""
    run = trained("runs/a")
    assert list_all().runs["runs/a"].startswith("9 of 9 steps, validation loss")
    lines = run.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    run.metrics.write_text("".join(line for line in lines if json.loads(line)["step"] < 9), encoding="utf-8")
    shutil.rmtree(run.checkpoints / "step-00000009")
    about = list_all().runs["runs/a"]
    assert about.startswith("interrupted after 8 of 9 steps, validation loss ")
    assert about.endswith("; `ch.resume('runs/a')` goes on from step 6")
    started: list[int] = []
    resume(run, on_event=lambda event: started.append(event.step) if isinstance(event, Started) else None)
    assert started == [6]
    assert list_all().runs["runs/a"].startswith("9 of 9 steps, validation loss")
