"""`torchrun ... -m clearhead train` on a small text, and the losses that it writes down."""

import json
import os
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from child_processes import finish

from clearhead import cli

TEXT = "The cat sat on the mat, and the dog sat on the cat. Nobody knew what the mouse thought of it.\n" * 60
OPTIONS = """
--model.n_layers 2 --model.n_heads 2 --model.d_model 16 --model.d_ff 32 --model.block_size 16 --model.dropout 0
--data.tokenizer char --train.batch_size 6 --train.precision float32 --train.eval_every 5 --train.save_every 5
--train.threads 1 --json
""".split()  # noqa: SIM905

LIMIT = 900.0  # seconds, for several processes that train on a busy machine; a test has its own
UNCHECKED = ["--no-preflight"]


def torchrun(world_size: int, *arguments: str, restarts: int = 0) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--max-restarts={restarts}"]
    return [*launcher, "--monitor-interval=0.1", f"--nproc-per-node={world_size}", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run_command(folder: Path, world_size: int, *arguments: str) -> dict[str, Any]:
    """The command's JSON: one object, whatever the number of processes. One process is this one, which has torch."""
    if world_size == 1:
        with chdir(folder), redirect_stdout(StringIO()) as printed:
            assert cli.run(list(arguments)) == 0
        return dict(json.loads(printed.getvalue()))
    done = finish(torchrun(world_size, "-m", "clearhead", *arguments), cwd=folder, env=environment(), timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def train(folder: Path, world_size: int, steps: int, out: str, *options: str, source: str = "my.txt") -> dict[str, Any]:
    arguments = ["train", source, "--out", out, "--train.steps", str(steps), *OPTIONS, *(options or UNCHECKED)]
    return run_command(folder, world_size, *arguments)


def losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [record["loss"] for record in records if record["kind"] == "step"]
