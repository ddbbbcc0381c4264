"""`torchrun ... -m clearhead train`: one training on several processes, also where one of them dies."""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from child_processes import PATIENCE, Child, finish

TEXT = "The cat sat on the mat, and the dog sat on the cat. Nobody knew what the mouse thought of it.\n" * 60
OPTIONS = """
--model.n_layers 2 --model.n_heads 2 --model.d_model 16 --model.d_ff 32 --model.block_size 16 --model.dropout 0
--data.tokenizer char --train.batch_size 6 --train.precision float32 --train.eval_every 5 --train.save_every 5
--train.threads 1 --json
""".split()  # noqa: SIM905

UNCHECKED = ["--no-preflight"]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes of a machine meet as Linux has them")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def command(world_size: int, *arguments: str, restarts: int = 0) -> list[str]:
    if world_size == 1:
        return [sys.executable, "-m", "clearhead", *arguments]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--max-restarts={restarts}"]
    return [*torchrun, "--monitor-interval=0.1", f"--nproc-per-node={world_size}", "-m", "clearhead", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def train(folder: Path, world_size: int, steps: int, out: str, *options: str, source: str = "my.txt") -> dict[str, Any]:
    arguments = ["train", source, "--out", out, "--train.steps", str(steps), *OPTIONS, *(options or UNCHECKED)]
    done = finish(command(world_size, *arguments), cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))  # one object: the others print nothing


def losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [record["loss"] for record in records if record["kind"] == "step"]


def test_two_processes_train_what_one_trains_and_one_goes_on(folder: Path) -> None:
    alone, shared = train(folder, 1, 10, "alone"), train(folder, 2, 10, "shared")
    assert losses(folder / "shared") == pytest.approx(losses(folder / "alone"), abs=1e-5)
    assert shared["val_loss"] == pytest.approx(alone["val_loss"], abs=1e-5)
    for run in ("alone", "shared"):
        done = finish(command(1, "resume", run, "--train.steps", "15", "--json"), cwd=folder, env=environment())
        assert done.returncode == 0, done.stderr
    assert losses(folder / "shared") == pytest.approx(losses(folder / "alone"), abs=1e-5)


def resume(folder: Path, world_size: int, steps: int, run: str, *options: str) -> None:
    arguments = ["resume", run, "--train.steps", str(steps), "--json", *options]
    done = finish(command(world_size, *arguments), cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.campaign
def test_the_first_process_measures_its_pace_while_the_others_wait(folder: Path) -> None:
    arguments = ["train", "my.txt", "--out", "timed", "--minutes", "1", *OPTIONS, *UNCHECKED]
    done = finish(command(2, *arguments), cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", ["my.txt", "my.tsv"])
def test_weights_are_shared_out_and_whole_again(source: str, folder: Path) -> None:
    """A text and sentence pairs, checked before the first step, evaluated, sampled, saved, resumed and read by all."""
    pairs = [f"{n} cats\t{n} Katzen\n" for n in range(300)]
    (folder / "my.tsv").write_text("".join(pairs), encoding="utf-8")
    for run, world_size in (("alone", 1), ("shared", 2)):
        train(folder, world_size, 10, run, "--train.parallel", "fsdp", source=source)
    resume(folder, 1, 15, "alone")
    resume(folder, 2, 12, "shared")
    resume(folder, 1, 15, "shared")
    assert losses(folder / "shared") == pytest.approx(losses(folder / "alone"), abs=1e-5)
    for name in ("samples.md", "config.json"):
        assert (folder / "shared" / name).read_text(encoding="utf-8").replace("shared", "alone") == (
            folder / "alone" / name
        ).read_text(encoding="utf-8")
    done = finish(command(1, "evaluate", "shared", "--json"), cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr


def test_a_mistake_is_told_once_and_ends_all(folder: Path) -> None:
    done = finish(command(2, "train", "nothing.txt", "--minutes", "1"), cwd=folder, env=environment())
    assert done.returncode != 0
    assert done.stderr.count("clearhead: ") == 1, done.stderr


@pytest.mark.campaign
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kills", [1, 40])
def test_a_process_that_is_killed_costs_nothing(folder: Path, kills: int) -> None:
    steps = 40 * (1 + kills // 4)
    whole = train(folder, 2, steps, "whole")
    arguments = ["train", "my.txt", "--out", "killed", "--train.steps", str(steps), *OPTIONS, *UNCHECKED]
    generator = random.Random(kills)
    with Child(command(2, *arguments, restarts=kills), cwd=folder, env=environment(), stderr=None) as child:
        deadline = time.monotonic() + PATIENCE * (1 + kills)
        for _ in range(kills):
            while len(workers := _workers(child.process.pid)) < 2 and child.process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(generator.uniform(0, 6))
            if child.process.poll() is None:
                os.kill(generator.choice(workers), signal.SIGKILL)
        assert child.process.wait(timeout=deadline - time.monotonic()) == 0
    assert len(losses(folder / "killed")) == steps
    assert losses(folder / "killed") == losses(folder / "whole")
    assert whole["steps"] == steps


def _workers(launcher: int) -> list[int]:
    """The processes that torchrun started, the first one first."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="utf-8")
    return sorted(map(int, children.split()))
