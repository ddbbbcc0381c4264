"""Long prompts: how long reading one takes, what a new token costs after it, and the memory of both.

    python benchmarks/long_texts.py [--rounds 5] [--prompts 1024 2048 4096 8192 16384] [--engine native] [--keep]

A decoder with rotary positions, once with full attention and once with a sliding window, reads a prompt and writes 64
tokens, each measurement in a process of its own, on one thread; prompts take turns (1k 2k 4k ... 1k 2k 4k ...). The
table has medians over the rounds, and the lowest and highest time of a token; beside busy neighbors, `--clock
processor` counts what this process had of the processor. "Attention" is measured beside it: one
query that attends to as many keys and values as the cache holds then, in every layer, and nothing else; what is left
of a token's time is told in the last column but two, and should not grow; below zero, the engine's attention is faster
than torch's, which was measured. Memory is the most that the process had
in use at any time (the resident set) less what it had before the prompt was read.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from side_by_side import CLOCKS, arguments, machine

from clearhead.cli.environment import prepare_process
from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import Engine, stream_ids
from clearhead.models import CausalLM, build_model
from clearhead.parts import attend

NEW_TOKENS, REPEATS, WINDOW = 64, 20, 1024
SHAPE: dict[str, Any] = {"vocab_size": 65, "n_layers": 4, "n_heads": 4, "d_model": 128, "positions": "rope"}
RESULTS = Path(__file__).parent / "results" / "long_texts.md"


def measure(length: int, window: int | None, engine: str, clock: str) -> dict[str, float]:
    """Of one prompt, in this process."""
    now = CLOCKS[clock]
    prepare_process()  # the allocator
    config = ModelConfig.read(SHAPE, {"block_size": length + NEW_TOKENS, "sliding_window": window})
    model = build_model(config).eval()
    assert isinstance(model, CausalLM)
    prompt = torch.randint(65, (length,), generator=torch.Generator().manual_seed(1)).tolist()
    sampling = SamplingConfig(greedy=True, max_new_tokens=NEW_TOKENS)
    list(stream_ids(model, [prompt[:64]], sampling))  # warm up
    kept = Engine(model, EngineConfig.read({"engine": engine}))
    kept.backend(NEW_TOKENS, print)
    before, start_time = peak_memory(), now()
    stamps = [now() for _ in stream_ids(model, [prompt], sampling, engine=kept)]
    return {
        "prompt": stamps[0] - start_time,
        "token": (stamps[-1] - stamps[0]) / (len(stamps) - 1),
        "attention": attention(config, min(length, window or length), now),
        "memory": peak_memory() - before,
    }


@torch.inference_mode()
def attention(config: ModelConfig, columns: int, now: Callable[[], float]) -> float:
    """Seconds in which every layer's attention reads its keys and values for one token."""
    held = [torch.randn(1, config.n_kv_heads, columns, config.head_dim) for _ in range(2 * config.n_layers)]
    query = torch.randn(1, config.n_heads, 1, config.head_dim)

    taken = []
    for _ in range(REPEATS):
        start_time = now()
        for keys, values in zip(held[::2], held[1::2], strict=True):
            attend(query, keys, values)
        taken.append(now() - start_time)
    return statistics.median(taken)


def peak_memory() -> float:
    """The most bytes that this process had in use."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def elsewhere(length: int, window: int | None, args: argparse.Namespace) -> dict[str, float]:
    """The same in a process of its own."""
    arguments = {"--one": length, "--window": window or 0, "--engine": args.engine, "--clock": args.clock}
    command = [sys.executable, __file__, *(str(word) for pair in arguments.items() for word in pair)]
    measured: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return measured


def table(window: int | None, args: argparse.Namespace) -> list[str]:
    """The lines of a table."""
    rounds = []
    for done in range(args.rounds):
        print(f"round {done + 1} of {args.rounds}", file=sys.stderr)
        rounds.append([elsewhere(length, window, args) for length in args.prompts])
    what = "attention to all tokens" if window is None else f"a window of {window:,} tokens"
    lines = [
        f"| {what}: prompt | to read it, s | ms a token of it | ms a new token | attention, ms | the rest, ms "
        "| memory, MB | KB a token |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for length, rounds_of_length in zip(args.prompts, zip(*rounds, strict=True), strict=True):
        median = {key: statistics.median(measured[key] for measured in rounds_of_length) for key in rounds_of_length[0]}
        tokens = sorted(1e3 * measured["token"] for measured in rounds_of_length)
        lines.append(
            f"| {length:,} | {median['prompt']:.2f} | {1e3 * median['prompt'] / length:.3f} "
            f"| {1e3 * median['token']:.2f} ({tokens[0]:.2f} to {tokens[-1]:.2f}) | {1e3 * median['attention']:.2f} "
            f"| {1e3 * (median['token'] - median['attention']):.2f} "
            f"| {median['memory'] / 1e6:.0f} | {median['memory'] / length / 1e3:.1f} |"
        )
    return lines


def main() -> None:
    parser = arguments(__doc__, 5, RESULTS)
    parser.add_argument("--prompts", nargs="+", type=int, default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--engine", choices=["eager", "native"], default="native")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # what the processes are told
    parser.add_argument("--window", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.window or None, args.engine, args.clock)))
        return
    lines = [f"{machine()}, {args.clock} clock, {args.rounds} rounds; engine {args.engine}; 4 layers, d_model 128."]
    for window in (None, WINDOW):
        lines_of_table = table(window, args)
        print("\n".join(lines_of_table), flush=True)
        lines += ["", *lines_of_table]
    if args.keep:
        RESULTS.write_text("# Long texts\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
