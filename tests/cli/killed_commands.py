"""Runs `clearhead train` and `clearhead resume` in processes that are killed (-9) at random moments, until one is done.

Started by test_killed_commands.py in a process of its own, which loads torch once and forks: forking is safe only
before torch has started threads. Prints what happened as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from child_processes import exit_code

from clearhead import cli, workflows
from clearhead.workflows.tasks import causal

PATIENCE = 600.0  # seconds, for a whole training on a busy machine
SAVE_EVERY = 1
KILLED_WITHIN = 0.3  # seconds from a process's first save, or of its life; a whole training takes several times as long
MODEL = "--model.n_layers 1 --model.n_heads 2 --model.d_model 16 --model.block_size 16 --model.dropout 0.1"
TRAIN = f"--train.batch_size 4 --train.eval_every 10 --train.save_every {SAVE_EVERY}"
OPTIONS = f"{MODEL} {TRAIN} --train.threads 1".split()


def command(argv: list[str]) -> int:
    """Forks a process that runs the command; returns its id."""
    child = os.fork()
    if child == 0:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os._exit(cli.run(argv))
    return child


def train_or_resume(folder: Path, steps: int) -> list[str]:
    if workflows.Run(folder).has_begun:
        return ["resume", str(folder)]
    return ["train", "my.txt", "--out", str(folder), "--train.steps", str(steps), *OPTIONS]


def finish(folder: Path, steps: int) -> None:
    """Nobody disturbs it."""
    assert exit_code(command(train_or_resume(folder, steps)), PATIENCE) == 0


def newest(folder: Path) -> str:
    """The name of the newest checkpoint, which grows."""
    return max((path.name for path in folder.glob("checkpoints/step-*")), default="")


def was_saving(folder: Path) -> bool:
    """Whether what was killed there was in the middle of writing something."""
    return any(path.name.startswith(".unfinished-") for path in folder.rglob("*"))


def wait_for_a_save(folder: Path, before: str, child: int) -> int | None:
    """On a busy machine it takes long to begin. If the process ends without one, with what."""
    deadline = time.monotonic() + PATIENCE
    while newest(folder) == before:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        assert time.monotonic() < deadline, "no save in all that time"
        time.sleep(0.002)
    return None


def train_killed(folder: Path, steps: int, draw: random.Random, most: int) -> list[str]:
    """Kill at most so many processes, then let the training end; what each was doing when it was killed."""
    killed: list[str] = []
    while len(killed) < most:
        before, child = newest(folder), command(train_or_resume(folder, steps))
        # one in four may be killed before it has saved anything
        code = wait_for_a_save(folder, before, child) if len(killed) % 4 else None
        if code is None:
            time.sleep(draw.uniform(0, KILLED_WITHIN))
            os.kill(child, signal.SIGKILL)
            code = exit_code(child)
        assert code in (0, -signal.SIGKILL), f"ended by itself with {code}"
        if code == 0:
            return killed
        killed.append("saving" if was_saving(folder) else "training" if newest(folder) > before else "starting")
    finish(folder, steps)
    return killed


def main() -> None:
    kills, seed, steps = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    causal.SAMPLE = causal.SAMPLE.model_copy(update={"max_new_tokens": 8})  # more time for what can be damaged
    draw, killed, rounds = random.Random(seed), list[str](), 0
    finish(Path("undisturbed"), steps)
    while len(killed) < kills:
        rounds += 1
        killed += train_killed(Path(f"killed-{rounds}"), steps, draw, kills - len(killed))
    print(json.dumps({"killed": killed, "rounds": rounds}))


if __name__ == "__main__":
    main()
