"""What a training leaves where it was stopped, whatever came while it saved; and that a finished one is left alone."""

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from workflow_helpers import STEPS, assert_same, outcome, trained

from clearhead import files
from clearhead.errors import InterruptedRunError
from clearhead.training import Stepped, checkpoints
from clearhead.workflows import Notice, Run, WorkflowEvent, list_all, resume


@pytest.mark.parametrize(
    ("step", "signals", "going_on"),
    [(5, 1, "goes on"), (5, 2, "goes on from step 4"), (1, 2, "goes on from the beginning")],
)
def test_signals_while_it_saves_leave_a_run_that_says_what_it_is(
    step: int, signals: int, going_on: str, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first came before, and the third ends it at once."""
    write = files.write_json

    def write_under_fire(path: Path, value: Mapping[str, object]) -> None:
        for _ in range(signals if path.parent.name.endswith(f"step-{step:08d}") else 0):
            signal.raise_signal(signal.SIGINT)
        write(path, value)

    def stop(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped) and event.step == step:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_json", write_under_fire)
        with pytest.raises((InterruptedRunError, SystemExit)):
            trained("runs/a", on_event=stop)
    about = list_all().runs["runs/a"]
    assert about.startswith(f"interrupted after {step} of {STEPS} steps")
    assert about.endswith(f"; `ch.resume('runs/a')` {going_on}")
    assert Path("runs/a/report.html").is_file()
    resume("runs/a")
    assert_same(outcome("runs/a"), outcome(undisturbed))


def test_of_a_finished_run_nothing_is_written(finished: Run) -> None:
    """The log, the options, the tokenizer and the report were written again, and the report drawn."""

    def written() -> dict[Path, tuple[int, bytes]]:
        files = [path for path in Path().rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files if path.name != ".lock"}

    before, events = written(), list[WorkflowEvent]()
    resume(finished, on_event=events.append)
    assert written() == before
    sentence = f"run has finished its {STEPS} steps, and is left as it is; to train it longer: "
    assert events == [Notice(f"{sentence}`ch.resume('run', options={{'train.steps': {2 * STEPS}}})`")]


@pytest.mark.parametrize("name", ["report.html", "samples.md"])
def test_a_report_that_a_crash_kept_from_being_written_is_written(name: str, finished: Run) -> None:
    page = (finished.folder / name).read_bytes()
    (finished.folder / name).write_bytes(page[:-10])
    resume(finished)
    assert (finished.folder / name).read_bytes() == page


def test_a_mean_that_a_crash_kept_from_being_taken_is_taken() -> None:
    run = trained(options={"train": {"average_checkpoints": 2}})
    records = run.metrics.read_text(encoding="utf-8")
    run.metrics.write_text("".join(line for line in records.splitlines(keepends=True) if '"mean"' not in line))
    resume(run)
    lines = run.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    again = next(line for line in lines if '"start"' in line and line not in records)
    lines.remove(again)  # the second start
    assert "".join(lines) == records
