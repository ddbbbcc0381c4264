"""How long an examination takes, as whole processes, the import of torch included.

    python benchmarks/doctor/timing.py           # five repetitions, interleaved; the table
    python benchmarks/doctor/timing.py --keep    # and into benchmarks/results/doctor_timing.md

The tiny models are the healthy hosts; the large ones have GPT-2's sizes: a plain file, and transformers' own.
"""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

import torch
from faults import HERE, HOSTS
from tables import arguments, publish

RESULTS = HERE.parent / "results" / "doctor_timing.md"
LEVELS = ("quick", "standard")
WANTED = {"tiny": {"quick": 2.0, "standard": 10.0}, "large": {"quick": 20.0, "standard": 60.0}}  # seconds
GPT2 = ("vocab_size=50257", "n_embd=768", "n_layer=12", "n_head=12", "n_positions=1024", "n_inner=null")


@dataclass
class Case:
    """One model at one level; `seconds` and `bytes`, the largest resident memory, of every repetition."""

    name: str
    size: str
    level: str
    argv: tuple[str, ...]
    seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def measure(self) -> None:
        """Run the command once more."""
        command = [sys.executable, "-m", "clearhead", "doctor", *self.argv, "--level", self.level, "--json"]
        with tempfile.TemporaryFile() as out:
            start_time = time.perf_counter()
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            self.seconds.append(time.perf_counter() - start_time)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, f"{self.name}, {self.level}: exit {process.returncode}"
        self.bytes.append(used.ru_maxrss * 1024)  # of the largest of all processes

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def cases(sizes: list[str]) -> list[Case]:
    """Every model at every level."""
    models: list[tuple[str, str, tuple[str, ...]]] = []
    if "tiny" in sizes:
        models += [(host, "tiny", (f"{HERE / 'hosts' / host}.py:build",)) for host in HOSTS]
    if "large" in sizes:
        own_sizes = tuple(word for setting in GPT2 for word in ("--set", setting))
        models += [
            ("large_gpt.py", "large", (f"{HERE / 'large_gpt.py'}:build",)),
            ("hf:gpt2", "large", ("hf:gpt2", *own_sizes)),
        ]
    return [Case(name, size, level, argv) for name, size, argv in models for level in LEVELS]


def table(measured: list[Case]) -> list[str]:
    """The tiny models as one, the large ones each by itself."""
    lines = ["| model | level | seconds, median | wanted | from | to | memory, GB |", "|---|---|---|---|---|---|---|"]
    for size in WANTED:
        for level in LEVELS:
            group = [case for case in measured if (case.size, case.level) == (size, level)]
            rows = [(f"{len(group)} tiny hosts", group)] if size == "tiny" else [(case.name, [case]) for case in group]
            lines += [line(name, level, size, members) for name, members in rows if members]
    return lines


def line(name: str, level: str, size: str, members: list[Case]) -> str:
    seconds = [second for case in members for second in case.seconds]
    memory = max(max(case.bytes) for case in members) / 1e9
    return (
        f"| {name} | {level} | {statistics.median(case.median for case in members):.2f} | {WANTED[size][level]:g} "
        f"| {min(seconds):.2f} | {max(seconds):.2f} | {memory:.2f} |"
    )


def main() -> None:
    parser = arguments(__doc__, RESULTS)
    parser.add_argument("--sizes", nargs="+", choices=list(WANTED), default=list(WANTED))
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    measured = cases(args.sizes)
    for number in range(args.repetitions):
        for case in measured:
            print(f"{number + 1} of {args.repetitions}: {case.name}, {case.level}", file=sys.stderr)
            case.measure()
    page = [
        f"{args.repetitions} repetitions, interleaved; {platform.machine()}, {os.cpu_count()} cores, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'not set')}, torch {torch.__version__}.",
        "",
        *table(measured),
    ]
    publish("How long an examination takes", page, RESULTS, keep=args.keep)


if __name__ == "__main__":
    main()
