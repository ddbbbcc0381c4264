"""torchrun starts the processes again when one of them dies: the run ends as if nothing had happened."""

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from child_processes import PATIENCE, Child
from torchrun_helpers import LIMIT, OPTIONS, TEXT, UNCHECKED, environment, torchrun, train

from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.records import MEASURED

MORE = 20  # kills more than asked, until there are enough of each kind, and restarts of rounds that end by themselves
MOMENTS = ["saving", "training", "starting"]  # each with rank 0 and with rank 1, in turn
WITHIN = 8  # steps after the first of a round
POLL, SHORT_POLL = 0.2, 0.002  # seconds: a save takes some milliseconds

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="/proc knows the processes"), pytest.mark.campaign]


class Round(NamedTuple):
    """What torchrun has started: for the how manieth time, and the processes by their ranks."""

    number: int
    workers: dict[int, int]


class Kill(NamedTuple):
    """In which round, which rank, what it was doing, and after how many steps."""

    number: int
    rank: int
    moment: str
    step: int


class KilledTraining:
    """A training in `folder` whose processes are killed while torchrun, the `child`, starts them again."""

    def __init__(self, child: Child, folder: Path, draw: random.Random) -> None:
        self.launcher, self.run, self.draw = child.process, RunFolder(folder), draw
        self.kills = list[Kill]()
        self.rounds = set[int]()
        self.starting_seconds = 5.0
        self.read, self.steps, self.left = (-1, 0), 0, set[tuple[str, int]]()

    def round(self) -> Round | None:
        """The processes that are there now, once both are."""
        workers = dict[int, int]()
        numbers = set[int]()
        for process in _children(self.launcher.pid):
            variables = _variables(process)
            if "RANK" in variables and "TORCHELASTIC_RESTART_COUNT" in variables:
                workers[int(variables["RANK"])] = process
                numbers.add(int(variables["TORCHELASTIC_RESTART_COUNT"]))
        self.rounds |= numbers
        return Round(numbers.pop(), workers) if len(workers) == 2 and len(numbers) == 1 else None

    def next_round(self) -> Round | None:
        """The first in which nobody was killed yet; None at the end of the training."""
        killed = {kill.number for kill in self.kills}
        end = time.monotonic() + LIMIT
        while self.launcher.poll() is None:
            now = self.round()
            if now is not None and now.number not in killed:
                return now
            assert time.monotonic() < end, "torchrun starts no other round"
            time.sleep(POLL)
        return None

    def kill_in(self, now: Round, moment: str, rank: int) -> None:
        """Kill one process at that moment, or before if the round ends by itself."""
        begin, self.left = time.monotonic(), self._unfinished()
        if moment == "starting":
            time.sleep(self.draw.uniform(0, self.starting_seconds))
        elif self._wait(now, lambda: self._steps_of(now) > 0):
            self.starting_seconds = time.monotonic() - begin
            count = self.draw.uniform(1, WITHIN)
            self._wait(now, self._is_saving if moment == "saving" else lambda: self._steps_of(now) > count)
        stepped, saved = self._steps_of(now) > 0, self._is_saving()
        with suppress(ProcessLookupError):
            os.kill(now.workers[rank], signal.SIGKILL)
            saved &= self._is_saving()
            what = "saving" if saved else "training" if stepped else "starting"
            self.kills.append(Kill(now.number, rank, what, sum(r["kind"] == "step" for r in self.run.records())))

    def _wait(self, now: Round, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and all(Path(f"/proc/{process}/exe").exists() for process in now.workers.values()):
            if condition():
                return True
            time.sleep(SHORT_POLL)
        return False

    def _steps_of(self, now: Round) -> int:
        """The steps that the round has logged; a log that has not grown since is not read again."""
        size = self.run.metrics.stat().st_size if self.run.metrics.exists() else 0
        if (now.number, size) != self.read:
            records = list(self.run.records())
            starts = [index for index, record in enumerate(records) if record["kind"] == "start"]
            is_this = bool(starts) and records[starts[-1]]["process"] == now.workers[0]
            self.steps = sum(record["kind"] == "step" for record in records[starts[-1] :]) if is_this else 0
            self.read = now.number, size
        return self.steps

    def _unfinished(self) -> set[tuple[str, int]]:
        """What is being written to a checkpoint; what a process left that was killed stays until the next save."""
        files = set[tuple[str, int]]()
        for path in self.run.checkpoints.glob(".unfinished-*/*"):
            with suppress(FileNotFoundError):
                files.add((str(path), path.stat().st_mtime_ns))
        return files

    def _is_saving(self) -> bool:
        return not self._unfinished() <= self.left


def _children(process: int) -> list[int]:
    with suppress(OSError):
        return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8").split()]
    return []


def _variables(process: int) -> dict[str, str]:
    """A process's environment; nothing of one that has ended."""
    with suppress(OSError):
        text = Path(f"/proc/{process}/environ").read_text(encoding="utf-8", errors="replace")
        return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return {}


def is_enough(kills: list[Kill], least: int) -> bool:
    """Whether there are so many, and a quarter of them of each rank, and during a save, and while training."""
    counts = Counter(itertools.chain.from_iterable((kill.rank, kill.moment) for kill in kills))
    return len(kills) >= least and all(counts[kind] >= least // 4 for kind in (0, 1, "saving", "training"))


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("least", [2, 40])
def test_a_process_that_is_killed_costs_nothing(tmp_path: Path, least: int) -> None:
    (tmp_path / "my.txt").write_text(TEXT, encoding="utf-8")
    rare = ["--train.eval_every", "100", "--train.schedule", "constant", *UNCHECKED]
    steps = 15 * least
    train(tmp_path, 2, steps, "whole", *rare)
    arguments = ["train", "my.txt", "--out", "killed", "--train.steps", str(steps), *OPTIONS, *rare]
    launched = torchrun(2, "-m", "clearhead", *arguments, restarts=least + 2 * MORE)
    plan = itertools.cycle(itertools.product(MOMENTS, (0, 1)))
    with (
        (tmp_path / "errors.txt").open("w", encoding="utf-8") as errors,
        Child(launched, cwd=tmp_path, env=environment(), stderr=errors) as child,
    ):
        training = KilledTraining(child, tmp_path / "killed", random.Random(least))
        while not is_enough(training.kills, least) and (now := training.next_round()):
            training.kill_in(now, *next(plan))
            print(training.kills[-1:], flush=True)
            assert len(training.kills) <= least + MORE, training.kills
        while child.process.poll() is None:
            training.round()
            time.sleep(POLL)
        printed = (tmp_path / "errors.txt").read_text(encoding="utf-8")
        assert child.process.wait(timeout=PATIENCE) == 0, printed[-5000:]
    assert is_enough(training.kills, least), "the training was done before"
    killed_in = {kill.number for kill in training.kills}
    print(Counter((kill.moment, f"rank {kill.rank}") for kill in training.kills), f"in {len(training.rounds)} rounds")
    assert training.rounds == killed_in | {max(training.rounds)}, "a round ended by itself"
    assert_same(tmp_path / "killed", tmp_path / "whole")


def assert_same(killed: Path, whole: Path) -> None:
    """Every loss, rate and sample, the model and all checkpoints that are kept, byte for byte."""
    assert _measured_apart(killed) == _measured_apart(whole)
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert _checkpoints(killed) == _checkpoints(whole)


def _measured_apart(run: Path) -> list[dict[str, object]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{k: v for k, v in record.items() if k not in MEASURED} for record in records if record["kind"] != "start"]


def _checkpoints(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in (run / "checkpoints").glob("step-*/*")}
