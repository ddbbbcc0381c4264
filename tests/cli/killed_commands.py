"""Runs `clearhead train` and `clearhead resume` in processes that are killed (-9) at random moments, until one is done.

Several processes share a training as torchrun lets them, and one of them is killed; the others then have to end.
Started by test_killed_commands.py in a process of its own, which loads torch once and forks: forking is safe only
before torch has started threads. Prints what happened as JSON.
"""

import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from child_processes import exit_code

from clearhead import cli, workflows
from clearhead.workflows.tasks import causal

PATIENCE = 600.0  # seconds, for a whole training on a busy machine
PATIENCE_OF_TORCHRUN = 3.0  # seconds, for a process that has lost another before the training began
SAVE_EVERY = 1
KILLED_WITHIN = 0.3  # seconds from a process's first save, or of its life; a whole training takes several times as long
MODEL = "--model.n_layers 1 --model.n_heads 2 --model.d_model 16 --model.block_size 16 --model.dropout 0.1"
TRAIN = f"--train.batch_size 4 --train.eval_every 10 --train.save_every {SAVE_EVERY}"
OPTIONS = f"{MODEL} {TRAIN} --train.threads 1".split()


class Sharing(NamedTuple):
    """How many processes train together, and which option says how."""

    world_size: int
    parallel: str

    def command(self, argv: list[str]) -> list[int]:
        """Forks the processes that run the command; returns their ids, the first process's first."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        meeting = {"WORLD_SIZE": self.world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        children = []
        for rank in range(self.world_size):
            child = os.fork()
            if child == 0:
                os.environ |= {name: str(value) for name, value in {"RANK": rank, **meeting}.items()}
                silence = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silence, 1)
                os._exit(cli.run(argv))
            children.append(child)
        return children

    def train_or_resume(self, folder: Path, steps: int) -> list[int]:
        if workflows.Run(folder).has_begun:
            return self.command(["resume", str(folder)])
        together = ["--train.parallel", self.parallel]
        return self.command(["train", "my.txt", "--out", str(folder), "--train.steps", str(steps), *OPTIONS, *together])

    def finish(self, folder: Path, steps: int) -> None:
        """Nobody disturbs it."""
        for child in self.train_or_resume(folder, steps):
            assert exit_code(child, PATIENCE) == 0


def newest(folder: Path) -> str:
    """The name of the newest checkpoint, which grows."""
    return max((path.name for path in folder.glob("checkpoints/step-*")), default="")


def was_saving(folder: Path) -> bool:
    """Whether what was killed there was in the middle of writing something."""
    return any(path.name.startswith(".unfinished-") for path in folder.rglob("*"))


def wait_for_a_save(folder: Path, before: str, children: list[int]) -> None:
    """Or until a process has ended. On a busy machine it takes long to begin."""
    deadline = time.monotonic() + PATIENCE
    while newest(folder) == before and not any(has_ended(child) for child in children):
        assert time.monotonic() < deadline, "no save in all that time"
        time.sleep(0.002)


def has_ended(child: int) -> bool:
    """Whether there is an exit code, which stays."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_one(children: list[int], draw: random.Random, *, has_begun: bool) -> bool:
    """Kill one process, and see the others end; whether the training was done before."""
    victim = draw.choice(children)
    os.kill(victim, signal.SIGKILL)
    if not has_begun:  # who waits for the others to appear waits long, which torchrun ends
        end = time.monotonic() + PATIENCE_OF_TORCHRUN
        while time.monotonic() < end and not all(has_ended(child) for child in children):
            time.sleep(0.01)
        for child in (child for child in children if not has_ended(child)):
            os.kill(child, signal.SIGTERM)
    codes = {child: exit_code(child) for child in children}
    assert codes[victim] in (0, -signal.SIGKILL), f"ended by itself with {codes[victim]}"
    others = {code for child, code in codes.items() if child != victim}
    assert others <= ({0, 1} if has_begun else {0, 1, 130, -signal.SIGTERM}), codes
    return codes[children[0]] == 0


def train_killed(sharing: Sharing, folder: Path, steps: int, draw: random.Random, most: int) -> list[str]:
    """Kill at most so many processes, then let the training end; what each was doing when it was killed."""
    killed: list[str] = []
    while len(killed) < most:
        before, children = newest(folder), sharing.train_or_resume(folder, steps)
        if len(killed) % 4:  # one in four may be killed before it has saved anything
            wait_for_a_save(folder, before, children)
        time.sleep(draw.uniform(0, KILLED_WITHIN))
        if kill_one(children, draw, has_begun=newest(folder) > before):
            return killed
        killed.append("saving" if was_saving(folder) else "training" if newest(folder) > before else "starting")
        assert newest(folder) >= before, "what was saved is lost"
    sharing.finish(folder, steps)
    return killed


def main() -> None:
    kills, seed, steps, world_size = map(int, sys.argv[1:5])
    sharing = Sharing(world_size, sys.argv[5])
    torch.set_num_threads(1)
    causal.SAMPLE = causal.SAMPLE.model_copy(update={"max_new_tokens": 8})  # more time for what can be damaged
    draw, killed, rounds = random.Random(seed), list[str](), 0
    sharing.finish(Path("undisturbed"), steps)
    while len(killed) < kills:
        rounds += 1
        killed += train_killed(sharing, Path(f"killed-{rounds}"), steps, draw, kills - len(killed))
    print(json.dumps({"killed": killed, "rounds": rounds}))


if __name__ == "__main__":
    main()
