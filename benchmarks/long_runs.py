"""Runs that went on for long: what reading a log, writing the report and listing cost at ten times the length.

    python benchmarks/long_runs.py [--records 10000,100000] [--keep]

Each record is a step, an evaluation or a sample, as a training writes them (eight steps, then one of each). Time must
grow as the log does, memory beyond Python's own and the page hardly at all.
"""

import argparse
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from side_by_side import machine

from clearhead.workflows import Run, list_all, summary
from clearhead.workflows.runs import find
from clearhead.workflows.runs.report import write_report
from clearhead.workflows.tasks import CausalTask
from clearhead.workflows.training import train

RESULTS = Path(__file__).parent / "results" / "long_runs.md"
ROUNDS = 3
TEXT = "and so the king went home, and the queen said nothing, for it was late. " * 4
OPTIONS = {
    "model": {"n_layers": 1, "n_heads": 2, "d_model": 16, "block_size": 16},
    "train": {"steps": 1, "batch_size": 2, "threads": 1},
}


def some_records(count: int) -> Iterator[dict[str, Any]]:
    """So many records."""
    for number in range(count):
        step = number * 8 // 10 + 1
        loss = 1 + 3 / step**0.5
        if number % 10 == 8:
            yield {"kind": "evaluation", "step": step, "loss": loss + 0.1, "tokens": 16_384, "best": True}
        elif number % 10 == 9:
            yield {"kind": "sample", "step": step, "text": TEXT, "scores": {}}
        else:
            figures = {"learning_rate": 1e-3, "gradient_norm": 0.5, "tokens": 4096, "seconds": 0.05, "skipped": False}
            yield {"kind": "step", "step": step, "loss": loss, **figures}


def measure(run: Run, task: CausalTask, count: int) -> dict[str, float]:
    """Medians of seconds, peak of memory in MB, and the sizes of what is written in kB."""
    lines = (json.dumps(record) + "\n" for record in some_records(count))
    with run.metrics.open("w", encoding="utf-8") as log:
        log.writelines(lines)

    def listed() -> object:
        with patch.object(find, "run_folders", return_value=[run.folder]):
            return list_all()

    works: dict[str, Callable[[], object]] = {
        "the report, seconds": lambda: write_report(run, task),
        "the summary, seconds": lambda: summary(run),
        "the list, seconds": listed,
    }
    figures = {name: _seconds(work) for name, work in works.items()}
    tracemalloc.start()
    write_report(run, task)
    figures["the report's memory, MB"] = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    for name in ("metrics.jsonl", "report.html", "samples.md"):
        figures[f"`{name}`, kB"] = (run.folder / name).stat().st_size / 2**10
    return figures


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start_time = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_time)
    return statistics.median(times)


def main() -> None:
    """Measure and print; with --keep into benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default="10000,100000", help="how many, from few to many")
    parser.add_argument("--keep", action="store_true", help="write the table into benchmarks/results")
    args = parser.parse_args()
    counts = [int(word) for word in args.records.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "my.txt"
        source.write_text(TEXT * 20, encoding="utf-8")
        run = train(source, out=Path(folder) / "run", options=OPTIONS)
        task = run.task()
        assert isinstance(task, CausalTask)
        columns = {count: measure(run, task, count) for count in counts}
    few, many = columns[counts[0]], columns[counts[-1]]
    heads = [f"{count:,} records" for count in counts]
    rows = [["", *heads, "ratio"], ["---"] * (len(heads) + 2)]
    rows += [[name, *(f"{columns[c][name]:,.3g}" for c in counts), f"{many[name] / few[name]:.2f}"] for name in few]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    page = f"# Long runs\n\n{machine()}; medians of {ROUNDS}.\n\n{table}\n"
    print(page)
    if args.keep:
        RESULTS.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
