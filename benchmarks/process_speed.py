"""Several processes on one machine: two with a thread each beside one with two, and what the seams cost one process.

    python benchmarks/process_speed.py [--rounds 5] [--shapes tiny 124M] [--clock wall] [--keep]

A round of the first table starts one process with two threads, then two with torchrun, which train the same steps;
tokens per second are those of the median step, without the first ones. Beside busy neighbors, tokens per second of
processor time tell more: of all threads and processes together. The second table has steps of one process as they are,
and with what several processes need taken out: rows are the batch, a sum is the number itself. The third has what each
of these takes alone, as a share of such a step.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command does: a busy neighbor then costs little

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from side_by_side import Row, Work, arguments, compare, machine, spread

from clearhead.cli.environment import prepare_process
from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS
from clearhead.data import Batch
from clearhead.models import build_model
from clearhead.training import Processes, Stepped, fit, join_processes

RESULTS = Path(__file__).parent / "results" / "process_speed.md"
SEAM_STEPS = 10  # of one round
WORKER = "CLEARHEAD_BENCHMARK_SHAPE"  # names the shape that a process of a round trains


class Shape(NamedTuple):
    """A preset, rows and tokens of a batch, steps that are left out and steps that are measured."""

    preset: str
    rows: int
    block_size: int
    first: int
    steps: int


SHAPES = {"tiny": Shape("tiny", 12, 128, 10, 60), "124M": Shape("gpt2", 4, 256, 1, 2)}


def steps_of(shape: Shape) -> Iterator[Stepped]:
    """The steps of a training on random tokens."""
    never = {"steps": 10**9, "eval_every": 10**9, "save_every": 10**9, "batch_size": shape.rows}
    vocabulary = {"vocab_size": 2048} if shape.preset == "tiny" else {}  # as a text for it has
    model = {"block_size": shape.block_size, "dropout": 0.0, **vocabulary}
    config = RunConfig.read(PRESETS[shape.preset].options, {"model": model, "train": never})

    def batch(step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(config.model.vocab_size, (shape.rows, shape.block_size + 1), generator=generator)
        return Batch(ids[:, :-1], ids[:, 1:])

    events = fit(build_model(config.model), config.train, batch, seed=1)
    return (event for event in events if isinstance(event, Stepped))


def work(shape: Shape) -> None:
    """What a process of a round does: train, and print the seconds of a step, of the clock and of all processors."""
    with join_processes() as group:
        steps = steps_of(shape)
        for _ in itertools.islice(steps, shape.first):
            pass
        start_time = time.process_time()
        seconds = [step.seconds for step in itertools.islice(steps, shape.steps)]
        processor = torch.tensor([(time.process_time() - start_time) / shape.steps], dtype=torch.float64)
        both = statistics.median(seconds), group.sum(processor).item()
        if group.is_first:
            print(json.dumps(both))


def tokens_per_second(name: str, processes: int) -> tuple[float, float]:
    """By the clock and of processor time, with as many processes, which have two threads together."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), __file__]
    environment = os.environ | {WORKER: name, "OMP_NUM_THREADS": str(2 // processes)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=1800)
    wall, processor = json.loads(done.stdout.splitlines()[-1])
    tokens = SHAPES[name].rows * SHAPES[name].block_size
    return tokens / wall, tokens / processor


def processes_beside_threads(names: Sequence[str], rounds: int) -> Iterator[str]:
    """A table: of each shape, one process with two threads and two with one, in turn."""
    yield "| shape | processes x threads | tokens per second | ratio | per second of processor time | ratio |"
    yield "|---|---|---|---|---|---|"
    for name in names:
        shape, taken = SHAPES[name], []
        for done in range(rounds):
            taken.append([tokens_per_second(name, processes) for processes in (1, 2)])
            print(f"{name}: round {done + 1} of {rounds}: {taken[-1]}", file=sys.stderr)
        what = f"{name}, {shape.rows} x {shape.block_size}"
        for number, processes in enumerate(("1 x 2", "2 x 1")):
            columns = []
            for clock in range(2):
                ratio = statistics.median(pair[number][clock] / pair[0][clock] for pair in taken)  # neighbors in time
                columns.append(f"{spread([pair[number][clock] for pair in taken])} | {ratio:.2f}")
            yield f"| {what} | {processes} | {' | '.join(columns)} |"


def seams() -> Sequence[Row]:
    """Steps of one process with and without what several processes need."""
    shape = SHAPES["tiny"]

    def some(steps: Iterator[Stepped], **replaced: Any) -> Work:
        def run() -> float:
            with ExitStack() as patches:
                for method, function in replaced.items():
                    patches.enter_context(patch.object(Processes, method, function))
                return sum(step.tokens for step in itertools.islice(steps, SEAM_STEPS))

        return run

    bare = {"rows": lambda group, batch: batch, "sum": lambda group, tensor: tensor}
    return [
        Row("without", "one process, tiny", some(steps_of(shape), **bare)),
        Row("as it is", "one process, tiny", some(steps_of(shape))),
    ]


def seams_alone() -> Iterator[str]:
    """What a step asks of the processes, where there is only one: processor time, and its share of a step's."""
    group, shape = Processes.joined(), SHAPES["tiny"]
    batch = (torch.zeros(shape.rows, shape.block_size, dtype=torch.long),) * 2
    numbers = torch.ones(2)
    calls: dict[str, Callable[[], object]] = {
        "rows of the batch": lambda: group.rows(batch),
        "loss and norm together": lambda: group.sum(torch.stack([numbers[0], numbers[1] / group.world_size])),
        "whether to stop": lambda: group.agree(0),
    }
    steps = steps_of(shape)
    step = statistics.median(_processor(lambda: next(steps), 1) for _ in range(SEAM_STEPS))
    for name, function in calls.items():
        seconds = statistics.median(_processor(function, 1000) for _ in range(5))
        yield f"| {name} | {1e6 * seconds:.1f} | {seconds / step:.3%} |"


def _processor(function: Callable[[], object], times: int) -> float:
    start_time = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - start_time) / times


def main() -> None:
    prepare_process()
    if name := os.environ.get(WORKER):
        work(SHAPES[name])
        return
    parser = arguments(__doc__, 5, RESULTS)
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--seam-rounds", type=int, default=60, help="of the second table, in which a round is short")
    args = parser.parse_args()
    lines: list[str] = []
    if args.shapes:
        lines += [
            f"Medians (lowest to highest) of {args.rounds} rounds, interleaved; ratios of rounds side by side.",
            "",
        ]
        lines += processes_beside_threads(args.shapes, args.rounds)
    lines += ["", f"{machine()}, {args.clock} clock, {args.seam_rounds} rounds of {SEAM_STEPS} steps, interleaved.", ""]
    lines += ["| seams | | tokens per second | ratio |", "|---|---|---|---|"]
    lines += compare(seams(), args.seam_rounds, args.clock)
    lines += ["", "| one process asks | microseconds of processor time | share of a step |", "|---|---|---|"]
    lines += seams_alone()
    print("\n".join(lines), flush=True)
    if args.keep:
        RESULTS.write_text("# Several processes\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
