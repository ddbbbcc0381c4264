"""What a training holds in memory, beside what `clearhead describe` says of it.

    python benchmarks/process_memory.py [--processes 4] [--megabytes 512] [--keep]

The first table has each of several processes that share the weights out (FSDP) after two steps: the bytes of weights,
gradients and optimizer that it holds, its private memory above that of the same process before the model was built, and
the most that it had in between. The second has the most blocks that train within a limit of memory (of the system, on
what the process may allocate beyond what it had before), with and without `train.recompute blocks`, by bisection.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ctypes
import gc
import itertools
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from side_by_side import arguments, machine

from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS
from clearhead.data import Batch
from clearhead.errors import ClearheadError
from clearhead.inspection import estimate_cost
from clearhead.models import LanguageModel, build_model
from clearhead.training import Optimizer, Stepped, build_optimizer, build_sharded, fit, join_processes
from clearhead.training.sharding import shard_of

RESULTS = Path(__file__).parent / "results" / "process_memory.md"
WORKER = "CLEARHEAD_BENCHMARK_WORK"  # what a process of ours is to do, as JSON
STEPS = 2  # an optimizer's state is there after the first, and everything together in the second
MOST_BLOCKS = 256
PARTS = ("weights", "gradients", "optimizer")
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2, AdamW": {"preset": "gpt2", "train": {"optimizer": "adamw"}},
    "gpt2, Muon": {"preset": "gpt2", "train": {"optimizer": "muon"}},
}
SHARED = {"model": {"block_size": 64, "dropout": 0.0}, "train": {"batch_size": 8, "precision": "float32"}}
DEEP = {
    "model": {"vocab_size": 2048, "block_size": 256, "n_heads": 4, "d_model": 256, "d_ff": 1024, "dropout": 0.0},
    "train": {"batch_size": 8, "optimizer": "adamw", "precision": "float32"},
}
TINY = {"model": {"vocab_size": 64, "block_size": 16, "n_layers": 1, "n_heads": 1, "d_model": 16}}


def batch_of(config: RunConfig, step: int) -> Batch:
    """Random tokens."""
    shape = config.train.batch_size, config.model.block_size + 1
    ids = torch.randint(config.model.vocab_size, shape, generator=torch.Generator().manual_seed(step))
    return Batch(ids[:, :-1], ids[:, 1:])


def train(config: RunConfig, *, sharded: bool) -> tuple[LanguageModel, Optimizer]:
    """Some steps."""
    model = build_sharded(config.model, torch.device("cpu")) if sharded else build_model(config.model)
    optimizer = build_optimizer(model, config.train)
    events = fit(model, config.train, partial(batch_of, config), optimizer=optimizer)
    for _ in itertools.islice((event for event in events if isinstance(event, Stepped)), STEPS):
        pass
    return model, optimizer


def hold(options: dict[str, Any]) -> None:
    """What a process that shares a training holds."""
    with join_processes() as group:
        train(RunConfig.read(TINY), sharded=True)  # what the first step of any model allocates
        before = private_memory()
        forget_peak()
        config = RunConfig.read(PRESETS[options["preset"]].options, SHARED, {"train": options["train"]})
        model, optimizer = train(config, sharded=True)
        peak = memory_in("status", "VmHWM") - before
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        parts: tuple[list[torch.Tensor], ...] = (list(model.parameters()), gradients, list(optimizer.state.values()))
        held = {name: sum(shard_of(t).nbytes for t in tensors) for name, tensors in zip(PARTS, parts, strict=True)}
        print(json.dumps({"rank": group.rank, "private": private_memory() - before, "peak": peak, **held}), flush=True)


def fits(options: dict[str, Any]) -> None:
    """Whether a model trains within the limit, which is for what the process allocates from now on."""
    train(RunConfig.read(TINY), sharded=False)
    limit = memory_in("status", "VmData") + options["limit"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        train(RunConfig.read(options["config"]), sharded=False)
    except ClearheadError as error:
        sys.exit(str(error))
    print(json.dumps("it fits"), flush=True)


def memory_in(file: str, name: str) -> int:
    """The bytes that Linux says of this process."""
    lines = Path(f"/proc/self/{file}").read_text(encoding="utf-8").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def private_memory() -> int:
    """What this process alone has in memory, once what it has freed is given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory_in("smaps_rollup", "Private_")


def forget_peak() -> None:
    """The most that the process had in memory is what it has now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def start(work: dict[str, Any], processes: int = 1) -> "subprocess.CompletedProcess[str]":
    """Do some work in processes of their own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), __file__]
    environment = os.environ | {WORKER: json.dumps(work)}
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=1800)


def held_by_processes(processes: int) -> Iterable[str]:
    """A table: what each process holds, and what `describe --devices` says."""
    yield f"| MB in each of {processes} processes | `describe` | held | difference |"
    yield "|---|---|---|---|"
    for name, options in SHAPES.items():
        config = RunConfig.read(PRESETS[options["preset"]].options, SHARED, {"train": options["train"]})
        shared = estimate_cost(config.model, config.train, devices=processes).shared
        assert shared is not None
        expected = shared.bytes["fsdp"]
        done = start({"hold": options}, processes)
        done.check_returncode()
        measured = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert len(measured) == processes
        for part in PARTS:
            yield row(f"{name}: {part}", expected[part], [held[part] for held in measured])
        three = sum(expected[part] for part in PARTS)
        yield row(f"{name}: the three, by the tensors", three, [sum(held[p] for p in PARTS) for held in measured])
        yield row(f"{name}: the three, by private memory", three, [held["private"] for held in measured])
        yield row(f"{name}: the most at any time", expected["training"], [held["peak"] for held in measured])


def row(name: str, expected: int, measured: list[int]) -> str:
    """A line of the table; the difference is that of the process that is farthest off."""
    farthest = max((number / expected - 1 for number in measured), key=abs)
    spread = f"{min(measured) / 1e6:,.1f} to {max(measured) / 1e6:,.1f}"
    return f"| {name} | {expected / 1e6:,.1f} | {statistics.median(measured) / 1e6:,.1f} ({spread}) | {farthest:+.1%} |"


def largest(limit: int) -> Iterable[str]:
    """A table: the most blocks that train within so many bytes."""
    yield f"| within {limit / 1e6:,.0f} MB | blocks | parameters | `describe` says of these | of one more |"
    yield "|---|---|---|---|---|"
    for recompute in ("none", "blocks"):
        fitting, too_many = 0, MOST_BLOCKS
        while too_many - fitting > 1:
            middle = min((fitting + too_many) // 2, 2 * fitting + 8)
            done = start({"fits": {"limit": limit, "config": deep(middle, recompute).model_dump()}})
            print(f"{recompute}: {middle} blocks: {done.stdout.strip() or done.stderr[-200:]}", file=sys.stderr)
            fitting, too_many = (middle, too_many) if done.stdout else (fitting, middle)
        configs = [deep(blocks, recompute) for blocks in (max(1, fitting), fitting + 1)]
        costs = [estimate_cost(config.model, config.train) for config in configs]
        sizes = " | ".join(f"{cost.bytes['training'] / 1e6:,.0f} MB" for cost in costs)
        yield f"| `train.recompute {recompute}` | {fitting} | {costs[0].parameters:,} | {sizes} |"


def deep(blocks: int, recompute: str) -> RunConfig:
    """A model of so many blocks, and its training."""
    return RunConfig.read(DEEP, {"model": {"n_layers": blocks}, "train": {"recompute": recompute}})


def main() -> None:
    if WORKER in os.environ:
        ((work, options),) = json.loads(os.environ[WORKER]).items()
        {"hold": hold, "fits": fits}[work](options)
        return
    parser = arguments(__doc__, 1, RESULTS)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=512)
    args = parser.parse_args()
    tables = held_by_processes(args.processes), [""], largest(1_000_000 * args.megabytes)
    lines = [f"{machine()}, gloo.", ""]
    for line in itertools.chain(*tables):
        print(line, flush=True)
        lines.append(line)
    if args.keep:
        RESULTS.write_text("# Memory of trainings\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
