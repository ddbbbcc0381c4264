"""`torchrun ... -m clearhead train`: one training on several processes, also where one of them dies."""

import os
import signal
import socket
import sys
import threading
import time
from contextlib import chdir, redirect_stderr
from io import StringIO
from pathlib import Path

import pytest
import torch
from child_processes import Child, finish
from process_helpers import run_processes
from torch import Tensor
from torchrun_helpers import LIMIT, OPTIONS, TEXT, UNCHECKED, environment, losses, run_command, torchrun, train

import clearhead
from clearhead import cli
from clearhead.config import ModelConfig, TrainConfig
from clearhead.models import build_model
from clearhead.training import (
    Processes,
    ProcessLostError,
    SaveDue,
    build_optimizer,
    build_sharded,
    checkpoints,
    fit,
)
from clearhead.workflows import training
from clearhead.workflows.events import Finished
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.report import write_report
from clearhead.workflows.signals import Interruption, interruptible_batches
from clearhead.workflows.tasks import Task, causal

WHOLE_SAMPLE = causal.SAMPLE  # before a fixture shortens it

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes of a machine meet as Linux has them")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def resume(folder: Path, world_size: int, steps: int, out: str) -> None:
    run_command(folder, world_size, "resume", out, "--train.steps", str(steps), "--json")


def test_two_processes_train_what_one_trains_and_one_goes_on(folder: Path) -> None:
    alone, shared = train(folder, 1, 10, "alone"), train(folder, 2, 10, "shared")
    assert losses(folder / "shared") == pytest.approx(losses(folder / "alone"), abs=1e-5)
    assert shared["val_loss"] == pytest.approx(alone["val_loss"], abs=1e-5)
    for out in ("alone", "shared"):
        resume(folder, 1, 15, out)
    assert losses(folder / "shared") == pytest.approx(losses(folder / "alone"), abs=1e-5)


@pytest.mark.campaign
def test_the_first_process_measures_its_pace_while_the_others_wait(folder: Path) -> None:
    arguments = ["train", "my.txt", "--out", "timed", "--minutes", "1", *OPTIONS, *UNCHECKED]
    run_command(folder, 2, *arguments)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", ["my.txt", "my.tsv"])
def test_weights_are_shared_out_and_whole_again(source: str, folder: Path) -> None:
    """A text and sentence pairs, checked before the first step, evaluated, sampled, saved, resumed and read by all."""
    pairs = [f"{n} cats\t{n} Katzen\n" for n in range(300)]
    (folder / "my.tsv").write_text("".join(pairs), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:  # as long as those of the processes, which know nothing of this suite's
        patch.setattr(causal, "SAMPLE", WHOLE_SAMPLE)
        for out, world_size in (("alone", 1), ("shared", 2)):
            train(folder, world_size, 10, out, "--train.parallel", "fsdp", source=source)
        for out, world_size in (("alone", 1), ("shared", 2)):
            resume(folder, world_size, 12, out)  # the rates depend on the number of steps
            resume(folder, 1, 15, out)
    assert losses(folder / "shared") == pytest.approx(losses(folder / "alone"), abs=1e-5)
    for name in ("samples.md", "config.json"):
        assert (folder / "shared" / name).read_text(encoding="utf-8").replace("shared", "alone") == (
            folder / "alone" / name
        ).read_text(encoding="utf-8")
    run_command(folder, 1, "evaluate", "shared", "--json")


def called(folder: Path, *arguments: str) -> tuple[int, str]:
    """The command's exit code, and what it prints of its failure."""
    with chdir(folder), redirect_stderr(StringIO()) as printed:
        return cli.run(list(arguments)), printed.getvalue()


def test_a_mistake_is_told_once_and_ends_all(folder: Path) -> None:
    (first, message), (second, silence) = run_processes(called, 2, folder, "train", "nothing.txt", "--minutes", "1")
    assert first > 0
    assert second > 0
    assert "nothing.txt" in message
    assert not silence


def stopped(folder: Path, *arguments: str) -> tuple[int, str]:
    """`called`, and a signal to the second process once some steps are done."""

    def stop() -> None:
        while not (folder / "stopped" / "metrics.jsonl").exists() or len(losses(folder / "stopped")) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    if Processes.joined().rank == 1:
        threading.Thread(target=stop, daemon=True).start()
    return called(folder, *arguments)


def test_a_signal_to_one_process_stops_all_before_the_same_step(folder: Path) -> None:
    rate = ["--train.schedule", "constant", "--train.warmup_steps", "0"]  # whatever the number of steps
    arguments = ["train", "my.txt", "--out", "stopped", "--train.steps", "10000", *OPTIONS[:-1], *UNCHECKED, *rate]
    (code, message), (second, silence) = run_processes(stopped, 2, folder, *arguments)
    assert code == second == 130
    assert "stopped after step" in message
    assert not silence
    steps = len(losses(folder / "stopped"))
    resume(folder, 1, steps + 5, "stopped")
    train(folder, 1, steps + 5, "alone", *UNCHECKED, *rate)
    assert losses(folder / "stopped") == pytest.approx(losses(folder / "alone"), abs=1e-5)


@pytest.mark.campaign
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_trained_model_is_trained_further_by_several(parallel: str, folder: Path) -> None:
    train(folder, 1, 5, "trained")
    arguments = ["train", "my.txt", "--from", "trained", "--train.steps", "5", "--train.parallel", parallel, "--json"]
    for world_size in (1, 2):
        ends = run_processes(called, world_size, folder, *arguments, "--out", f"further-{world_size}")
        assert all(code == 0 for code, _ in ends), ends
    assert losses(folder / "further-2") == pytest.approx(losses(folder / "further-1"), abs=1e-5)


SCRIPT = """
import clearhead
for out in ("first", "second"):
    clearhead.train("my.txt", out=out, preset="tiny", options={"train": {"steps": 3}}, check=False)
"""


def unreadable(folder: Path, parallel: str) -> tuple[str, int, list[int]]:
    """What ends the training whose second process cannot read a batch, who tells it, and the steps that are saved."""
    group, saved = Processes.joined(), list[int]()
    shape = ModelConfig(vocab_size=5, block_size=4, n_layers=1, n_heads=1, d_model=8)
    model = build_sharded(shape, torch.device("cpu")) if parallel == "fsdp" else build_model(shape)
    optimizer = build_optimizer(model, config := TrainConfig(steps=9, optimizer="adamw", warmup_steps=0))

    def batch(step: int) -> tuple[Tensor, Tensor]:
        if step == 3 and group.rank == 1:
            raise OSError("no disk")
        return torch.ones(2, 4, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)

    batches = interruptible_batches(Interruption(), batch, folder / "stop", group)
    try:
        for event in fit(model, config, batches, optimizer=optimizer):
            if isinstance(event, SaveDue):
                checkpoints.save(folder, model, optimizer, event.state, keep=1)
                saved.append(event.state.step)
    except (OSError, ProcessLostError) as error:
        return str(error), getattr(error, "speaker", group.rank), saved
    return "", group.rank, saved


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_all_save_and_end_where_one_process_cannot_read_its_batch(parallel: str, tmp_path: Path) -> None:
    ends = run_processes(unreadable, 2, tmp_path, parallel, limit=60, timeout=30)
    assert ends == [("another process of this training failed", 1, [3]), ("no disk", 1, [3])]
    assert checkpoints.newest(tmp_path) is not None


def write_slowly(run: RunFolder, task: Task) -> Finished:
    time.sleep(2)
    return write_report(run, task)


def returned(folder: Path) -> list[str]:
    """The run's files when `train` returns, where the first process takes long to write the report."""
    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        if Processes.joined().is_first:
            patch.setattr(training, "write_report", write_slowly)
        options = {"train": {"steps": 1, "batch_size": 2}, "model": {"d_model": 16, "n_layers": 1, "n_heads": 1}}
        run = clearhead.train("my.txt", out="slow", preset="tiny", options=options, check=False, progress=False)
        return sorted(path.name for path in run.folder.iterdir())


def test_every_process_may_read_the_run_that_train_returns(folder: Path) -> None:
    first, second = run_processes(returned, 2, folder)
    assert "report.html" in first
    assert second == first


@pytest.mark.campaign
def test_a_script_trains_one_model_after_the_other(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = finish(torchrun(2, "script.py"), cwd=folder, env=environment(), timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert losses(folder / "first") == losses(folder / "second")


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_launchers_on_several_machines_meet(folder: Path) -> None:
    """Two on this machine, which has no second one."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    meeting = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={address}", "--rdzv-id=1"]
    arguments = ["-m", "clearhead", "train", "my.txt", "--out", "apart", "--train.steps", "10", *OPTIONS, *UNCHECKED]
    launched = [sys.executable, "-m", "torch.distributed.run", *meeting, "--local-addr=127.0.0.1", *arguments]
    with (
        Child(launched, cwd=folder, env=environment()) as first,
        Child(launched, cwd=folder, env=environment()) as second,
    ):
        ends = first.end(), second.end()
    assert [code for code, _, _ in ends] == [0, 0], ends
    train(folder, 1, 10, "alone")
    assert losses(folder / "apart") == pytest.approx(losses(folder / "alone"), abs=1e-5)
