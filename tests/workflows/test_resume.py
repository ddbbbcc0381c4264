"""Whatever interrupts a training, and wherever: continued, it ends bit for bit where the undisturbed one ends."""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from workflow_helpers import STEPS, Outcome, assert_same, outcome, tiny, trained, write_text

from clearhead.errors import ClearheadError, DataError, InterruptedRunError, UsageError
from clearhead.training import Stepped
from clearhead.workflows import Notice, Observer, Run, WorkflowEvent, resume, train
from clearhead.workflows.runs.folder import RunFolder


class Crash(BaseException):
    """What nobody catches."""


@pytest.fixture
def reference(undisturbed: Path) -> Outcome:
    return outcome(undisturbed)


def crash_at(number: int) -> Observer:
    """An observer that ends the process, as far as the library can tell, at the event of that number."""
    count = 0

    def on_event(event: WorkflowEvent) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise Crash

    return on_event


def sentences(run: str | Path | Run | None = "run", **options: Any) -> list[str]:
    events: list[WorkflowEvent] = []
    resume(run, options=options, on_event=events.append)
    return [event.text for event in events if isinstance(event, Notice)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", [6, 8, 9, 12, 14, 16, 18, 19, 20, 22])
def test_a_crash_at_any_event_leaves_no_trace(number: int, reference: Outcome) -> None:
    with pytest.raises(Crash):
        trained(on_event=crash_at(number))
    resume("run")
    assert_same(outcome("run"), reference)


def test_crash_after_crash_leaves_no_trace(reference: Outcome) -> None:
    with pytest.raises(Crash):
        trained(on_event=crash_at(9))
    for number in (2, 4, 5, 7):
        with pytest.raises(Crash):
            resume("run", on_event=crash_at(number))
    resume("run")
    assert_same(outcome("run"), reference)


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, nth: int, error: Callable[[], BaseException]) -> Iterator[list[str]]:
    """From the n-th time on that a file is flushed or gets its name, that fails. Yields what was called."""
    calls: list[str] = []

    def guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) >= nth:
                raise error()
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (os, "replace"), (Path, "replace"), (Path, "rename")):
            patch.setattr(owner, name, guarded(name, getattr(owner, name)))
        yield calls


def fail_to_train(monkeypatch: pytest.MonkeyPatch, nth: int, error: Callable[[], BaseException]) -> BaseException:
    write_text()
    with failing(monkeypatch, nth, error), pytest.raises(BaseException) as raised:  # noqa: PT011
        trained()
    return raised.value


def go_on() -> None:
    """Resume, or begin again where there is no run yet."""
    if Run(Path("run")).has_begun:
        resume("run")
    else:
        trained()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("nth", [1, 2, 4, 9, 12, 15, 18, 23, 31, 37, 44])
def test_a_crash_in_the_middle_of_writing_leaves_no_trace(
    nth: int, reference: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(fail_to_train(monkeypatch, nth, Crash), Crash)
    go_on()
    assert_same(outcome("run"), reference)


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_crash_between_a_checkpoint_and_the_best_model_leaves_no_trace(
    nth: int, reference: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    bests, save_model = 0, RunFolder.save_model

    def save_or_crash(run: RunFolder, *arguments: Any, **options: Any) -> None:
        nonlocal bests
        bests += 1
        if bests == nth:
            raise Crash
        save_model(run, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_model", save_or_crash)
        with pytest.raises(Crash):
            trained()
    resume("run")
    assert_same(outcome("run"), reference)


@pytest.mark.parametrize("nth", [1, 3, 10, 17, 26])
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(
    nth: int, reference: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = fail_to_train(monkeypatch, nth, lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert isinstance(error, ClearheadError), repr(error)
    assert "No space left on device" in str(error) or "no space left" in str(error)
    assert "\n" not in str(error)
    go_on()
    assert_same(outcome("run"), reference)


def ask_to_stop(step: int, number: int) -> Observer:
    def on_event(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped) and event.step == step:
            signal.raise_signal(number)

    return on_event


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [1, 3, 4, STEPS - 1])
def test_asked_to_stop_it_finishes_the_step_and_saves(step: int, number: int, reference: Outcome) -> None:
    before = signal.getsignal(number)
    with pytest.raises(InterruptedRunError, match=rf"after step {step} of {STEPS}, everything is saved"):
        trained(on_event=ask_to_stop(step, number))
    assert signal.getsignal(number) is before
    assert (Path("run/checkpoints") / f"step-{step:08d}").is_dir()
    assert Run(Path("run")).generate("the", max_new_tokens=2)  # there is a model already
    resume("run")
    assert_same(outcome("run"), reference)


def test_each_start_is_recorded(reference: Outcome) -> None:
    with pytest.raises(InterruptedRunError):
        trained(on_event=ask_to_stop(3, signal.SIGINT))
    run = resume("run")
    starts = [record for record in run.records() if record["kind"] == "start"]
    assert [(record["step"], record["steps"]) for record in starts] == [(0, STEPS), (3, STEPS)]
    for record in starts:
        assert record["process"] == os.getpid()
        assert record["device"] == "cpu"
        assert record["threads"] == torch.get_num_threads()
        assert record["floor"] is None
        assert record["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("step", [1, 4, STEPS - 1])
def test_a_file_named_stop_asks_the_training_to_save_and_end(step: int, reference: Outcome) -> None:
    def on_event(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped) and event.step == step:
            Path("run/stop").touch()

    with pytest.raises(InterruptedRunError, match=rf"run/stop asked for it: stopped after step {step} of {STEPS}"):
        trained(on_event=on_event)
    assert not Path("run/stop").exists()
    Path("run/stop").touch()  # of no training that goes on: the next one does not end before it has begun
    resume("run")
    assert_same(outcome("run"), reference)
    assert not Path("run/stop").exists()


def test_asked_to_stop_at_the_last_step_it_ends_well(reference: Outcome) -> None:
    trained(on_event=ask_to_stop(STEPS, signal.SIGINT))
    assert_same(outcome("run"), reference)


def test_when_nobody_reads_any_more_it_stops_and_saves(reference: Outcome) -> None:
    def gone(event: WorkflowEvent) -> None:
        if isinstance(event, Stepped) and event.step >= 2:
            raise BrokenPipeError

    with pytest.raises(InterruptedRunError, match="after step 2"):
        trained(on_event=gone)
    resume("run")
    assert_same(outcome("run"), reference)


def test_a_finished_run_is_left_as_it_is(finished: Run, reference: Outcome) -> None:
    resume(finished)
    assert_same(outcome("run"), reference)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_finished_run_made_longer_is_the_longer_run(optimizer: str) -> None:
    """With a schedule that does not look at the end, so that the two are comparable at all."""
    options: dict[str, Any] = {"train": {"schedule": "constant", "optimizer": optimizer}}
    options["model"] = {"embedding_ngrams": 3, "logit_ngrams": 2} if optimizer == "muon" else {}
    trained("short", options=options)
    trained("long", options=options | {"train": options["train"] | {"steps": 12}})
    resume("short", options={"train": {"steps": 12}})
    assert Run(Path("short")).config.train.steps == 12
    short, long = outcome("short"), outcome("long")
    assert short.last_checkpoint["model.safetensors"] == long.last_checkpoint["model.safetensors"]
    assert short.last_checkpoint["optimizer.safetensors"] == long.last_checkpoint["optimizer.safetensors"]
    losses = [[r["loss"] for r in result.records if r["kind"] == "step"] for result in (short, long)]
    assert losses[0] == losses[1]


def test_a_run_cannot_be_made_shorter_than_it_is(finished: Run) -> None:
    with pytest.raises(UsageError, match=f"has done {STEPS} steps already"):
        resume(finished, options={"train": {"steps": STEPS - 1}})
    assert finished.config.train.steps == STEPS


@pytest.mark.parametrize("options", [{"model": {"n_layers": 2}}, {"data": {"val_fraction": 0.2}}])
def test_neither_the_model_nor_the_text_can_change(options: dict[str, Any], finished: Run) -> None:
    with pytest.raises(UsageError, match="same model, data and seed"):
        resume(finished, options=options)


def test_an_option_that_is_refused_does_not_stay(finished: Run, reference: Outcome) -> None:
    optimizer = "adamw" if finished.config.train.optimizer == "muon" else "muon"
    with pytest.raises(DataError, match="choose the same"):
        resume(finished, options={"train": {"optimizer": optimizer}})
    resume(finished)
    assert_same(outcome("run"), reference)


def spoil(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])


HOW = ["missing", "truncated", "altered"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_instead_of_a_damaged_checkpoint_the_one_before_is_used(
    name: str, how: str, finished: Run, reference: Outcome
) -> None:
    newest = max(finished.checkpoints.iterdir())
    spoil(newest / name, how)
    assert any(str(newest) in notice and "the one before" in notice for notice in sentences())
    assert_same(outcome("run"), reference)


def test_where_every_checkpoint_is_damaged_nothing_is_touched(finished: Run) -> None:
    for checkpoint in finished.checkpoints.iterdir():
        spoil(checkpoint / "model.safetensors", "altered")
    before = finished.metrics.read_bytes()
    with pytest.raises(DataError, match="every checkpoint"):
        resume(finished)
    assert finished.metrics.read_bytes() == before
    assert finished.generate("the", max_new_tokens=2)


def test_without_a_checkpoint_it_begins_again(finished: Run, reference: Outcome) -> None:
    shutil.rmtree(finished.checkpoints)
    resume(finished)
    assert_same(outcome("run"), reference)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "generation_config.json", "manifest.json"])
def test_damaged_model_files_are_told_and_written_again(name: str, how: str, finished: Run, reference: Outcome) -> None:
    spoil(finished.folder / name, how)
    if (name, how) != ("manifest.json", "altered"):  # its last bytes are white space and braces
        with pytest.raises(DataError, match=r"`ch\.resume\('run'\)` writes it again"):
            finished.model()
    resume(finished)
    assert_same(outcome("run"), reference)
    assert finished.generate("the", max_new_tokens=2)


@pytest.mark.parametrize("how", HOW)
def test_a_run_without_its_tokenizer_is_refused(how: str, finished: Run) -> None:
    spoil(finished.folder / "tokenizer.json", how)
    for use in (lambda: resume(finished), lambda: finished.generate("the"), lambda: finished.evaluate()):
        with pytest.raises(DataError, match=r"tokenizer\.json"):
            use()


def test_a_tokenizer_that_still_works_but_differently_is_refused(finished: Run) -> None:
    path = finished.folder / "tokenizer.json"
    spoiled = path.read_text(encoding="utf-8").replace('"a"', '"@"').replace('"b"', '"a"').replace('"@"', '"b"')
    path.write_text(spoiled, encoding="utf-8")
    for use in (lambda: resume(finished), lambda: finished.generate("the"), lambda: finished.evaluate()):
        with pytest.raises(DataError):
            use()


def test_a_text_that_has_changed_is_refused(finished: Run) -> None:
    config = finished.config
    source = Path("other.txt")
    source.write_text(Path("my.txt").read_text(encoding="utf-8")[::-1], encoding="utf-8")
    data = config.data.model_copy(update={"source": str(source.resolve())})
    finished.write_config(config.model_copy(update={"data": data}))
    for use in (lambda: resume(finished), lambda: finished.evaluate()):
        with pytest.raises(DataError, match=r"other\.txt or the run's tokenizer"):
            use()


@pytest.mark.parametrize("how", ["truncated", "altered"])
def test_a_damaged_list_of_options_is_refused(how: str, finished: Run) -> None:
    path = finished.folder / "clearhead.toml"
    content = path.read_text(encoding="utf-8")
    cut = content.index(" = ", len(content) // 2) + len(" = ")  # within a line: whole lines are options too
    path.write_text(content[:cut] if how == "truncated" else content.replace("n_layers", "n_lawyers"), encoding="utf-8")
    with pytest.raises(DataError, match=r"clearhead\.toml is damaged"):
        resume(finished)


def test_checkpoints_of_another_architecture_are_refused(finished: Run) -> None:
    other = finished.config.model_copy(update={"model": finished.config.model.model_copy(update={"n_layers": 2})})
    finished.write_config(other)
    with pytest.raises(DataError, match="another architecture"):
        resume(finished)
    with pytest.raises(DataError, match="n_layers"):
        finished.model()


def test_figures_that_a_crash_spoiled_are_left_out(finished: Run, reference: Outcome) -> None:
    with finished.metrics.open("ab") as lines:
        lines.write(b'\0\0\xff\n5\n{"a": 1}\n{"kind": "step", "step": 10, "lo')
    resume(finished)
    assert_same(outcome("run"), reference)


def test_of_two_trainings_in_one_folder_the_second_refuses(finished: Run, reference: Outcome) -> None:
    with finished.locked(), pytest.raises(ClearheadError, match="another process is training in run"):
        resume(finished)
    resume(finished)
    assert_same(outcome("run"), reference)


def test_two_trainings_at_once_get_a_folder_each() -> None:
    write_text()
    second: list[Run] = []

    def start_another(event: WorkflowEvent) -> None:
        if not second:
            second.append(Run(Path()))
            second[0] = train("my.txt", options=tiny(steps=1))

    first = train("my.txt", options=tiny(steps=1), on_event=start_another)
    assert (first.name, second[0].name) == ("my-1", "my-2")
    assert first.generate("the", max_new_tokens=1)
    assert second[0].generate("the", max_new_tokens=1)
