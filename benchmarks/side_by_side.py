"""What benchmarks share: their options, what they tell of the machine, and rows of a table that are measured in turn.

In turn, so that what the machine does beside hits all of them.
"""

import argparse
import compileall
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

import clearhead

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}

Work = Callable[[], float]  # does some and returns how many tokens, or sentences, that was


class Row(NamedTuple):
    """One line of a table: what it is, what else there is to say of it, and its work."""

    name: str
    remark: str
    work: Work


def compile_package() -> None:
    """To byte code, as pip does with what it installs: no process of a person compiles it anew at every start."""
    compileall.compile_dir(Path(clearhead.__file__).parent, quiet=1)


def arguments(about: str | None, rounds: int, results: Path | None = None) -> argparse.ArgumentParser:
    """The options of every benchmark: how often, whose seconds count, and whether the tables are kept in a file."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="whose seconds count")
    if results is not None:
        parser.add_argument("--keep", action="store_true", help=f"write the tables into {results.name}")
    return parser


def machine() -> str:
    """What the figures below were measured on."""
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}, torch {torch.__version__}"


def rate(work: Work, clock: str) -> float:
    """Tokens, or sentences, per second of one piece of work."""
    now = CLOCKS[clock]
    start_time = now()
    return work() / (now() - start_time)


def measure(rows: Sequence[Row], rounds: int, clock: str) -> list[tuple[float, ...]]:
    """The rates of each row in every round: A B C A B C ..."""
    for row in rows:
        row.work()  # warm up
    taken = []
    for done in range(rounds):
        print(f"round {done + 1} of {rounds}", file=sys.stderr)
        taken.append([rate(row.work, clock) for row in rows])
    return list(zip(*taken, strict=True))


def compare(rows: Sequence[Row], rounds: int, clock: str) -> list[str]:
    """The lines of a table: medians, and the ratio of each median to that of the first row."""
    measured = measure(rows, rounds, clock)
    medians = [statistics.median(rates) for rates in measured]
    lines = []
    for row, rates, median in zip(rows, measured, medians, strict=True):
        lines.append(f"| {row.name} | {row.remark} | {spread(rates)} | {median / medians[0]:.2f} |")
    return lines


def spread(rates: Sequence[float]) -> str:
    """The median, and in brackets the lowest and the highest."""
    three = (statistics.median(rates), min(rates), max(rates))
    median, low, high = (f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}" for rate in three)
    return f"{median} ({low} to {high})"
