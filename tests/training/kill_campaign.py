"""Trains in a child process that is killed at random moments, again and again, then lets the training end.

Run by test_killed_trainings.py in a process of its own: forking is safe only before torch has started threads.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from child_processes import PATIENCE, exit_code, read_before
from training_helpers import evaluator, start, tiny_batch, tiny_config

from clearhead.training import SaveDue, Stepped, checkpoints, fit

KILLED_WITHIN = 0.2  # seconds after the child's first step
ENDLESS = 10**9


def train_to(steps: int, folder: Path, optimizer: str, pipe: int | None = None) -> None:
    """One process's life: continue from the newest checkpoint, save after every third step and at each new best."""
    config = tiny_config(steps=steps, optimizer=optimizer, schedule="constant", save_every=3, eval_every=7)
    model, mover, state = start(config)
    checkpoint = checkpoints.newest(folder)
    if checkpoint:
        state = checkpoints.load(checkpoint.path, model, mover)
    for event in fit(model, config, tiny_batch, seed=7, optimizer=mover, state=state, evaluate=evaluator(model)):
        if isinstance(event, SaveDue):
            checkpoints.save(folder, model, mover, event.state, keep=2)
        elif isinstance(event, Stepped) and pipe is not None:
            os.write(pipe, b".")


def child_that_trains(folder: Path, optimizer: str) -> int:
    """Forks a training without end; returns once its first step is done."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        train_to(ENDLESS, folder, optimizer, writer)
    os.close(writer)
    assert read_before(reader, time.monotonic() + PATIENCE), "the training failed"
    os.close(reader)
    return child


def kill_repeatedly(folder: Path, optimizer: str, kills: int, seed: int) -> int:
    """Returns the last step that was saved."""
    draw, reached = random.Random(seed), 0
    for _ in range(kills):
        child = child_that_trains(folder, optimizer)
        time.sleep(draw.uniform(0, KILLED_WITHIN))
        os.kill(child, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL, "the training ended by itself"
        checkpoint = checkpoints.newest(folder)
        assert checkpoint is None or not checkpoint.notices, checkpoint
        now = checkpoints.read_state(checkpoint.path).step if checkpoint else 0
        assert now >= reached, f"step {reached} was saved and is lost: the newest is {now}"
        reached = now
    return reached


def main() -> None:
    folder, optimizer, kills, seed = sys.argv[1:]
    torch.set_num_threads(1)
    steps = kill_repeatedly(Path(folder), optimizer, int(kills), int(seed)) + 5
    train_to(steps, Path(folder), optimizer)
    print(steps)


if __name__ == "__main__":
    main()
