"""Run the lessons, each in a fresh kernel: python lessons/run.py [--keep] [--limit SECONDS] [NAME...].

Each lesson is read as a notebook, executed and written to build/lessons; --keep writes it to lessons/outputs, which
the site shows. SIZE=full runs at full size, one lesson at a time.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

LESSONS = Path(__file__).resolve().parent
KEPT = LESSONS / "outputs"
BUILT = LESSONS.parent / "build" / "lessons"
FULL = os.environ.get("SIZE") == "full"
LIMIT = 900 if FULL else 300  # seconds of a lesson; a busy machine is several times slower than a quiet one
AT_ONCE = 1 if FULL else 2
MAX_BYTES = 500_000
CELL = re.compile(r"/[^ ]*/ipykernel_\d+/\d+\.py")  # as what a notebook raises and warns of names a cell
COLORS = re.compile("\x1b\\[[0-9;]*m")


def lessons() -> list[Path]:
    """The lessons in their order."""
    return sorted(LESSONS.glob("[0-9][0-9]_*.py"))


def read(path: Path) -> Any:
    """A lesson as a notebook without outputs."""
    notebook = jupytext.read(path, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    notebook.metadata.clear()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    return notebook


async def execute(path: Path, folder: Path, limit: int) -> str:
    """Execute one lesson and write its notebook into a folder; what went wrong, or nothing."""
    notebook = read(path)
    start = time.perf_counter()
    problem = ""
    with tempfile.TemporaryDirectory() as runs:  # what a lesson trains lies here, and goes
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=limit,
            coalesce_streams=True,
            record_timing=False,
            extra_arguments=["--log-level=40"],
            resources={"metadata": {"path": runs}},
        )
        try:
            await asyncio.wait_for(client.async_execute(), limit)
        except CellExecutionError as error:
            problem = COLORS.sub("", str(error))
        except (TimeoutError, DeadKernelError):  # ended at its limit, a kernel may be called dead
            late = time.perf_counter() - start >= limit
            problem = f"not finished after {limit} seconds" if late else "its kernel died"
    seconds = time.perf_counter() - start
    size = "full" if FULL else "test"
    notebook.metadata["clearhead"] = {"size": size, "seconds": round(seconds), "torch": version("torch").split("+")[0]}
    text = CELL.sub("cell", nbformat.writes(notebook))  # type: ignore[no-untyped-call]
    if not problem and len(text) > MAX_BYTES:
        problem = f"{len(text):,} bytes with its outputs, more than {MAX_BYTES:,}: draw fewer or smaller pictures"
    if not problem or folder == BUILT:
        (folder / f"{path.stem}.ipynb").write_text(text + "\n", encoding="utf-8")
    print(
        f"{path.stem:40} {seconds:6.1f} s  {len(text) / 1000:4.0f} kB  {'FAILED' if problem else 'passed'}", flush=True
    )
    return f"{path.stem}: {problem}" if problem else ""


async def execute_all(paths: list[Path], folder: Path, limit: int) -> list[str]:
    """What went wrong in each lesson that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    free = asyncio.Semaphore(AT_ONCE)

    async def execute_next(path: Path) -> str:
        async with free:
            return await execute(path, folder, limit)

    return [problem for problem in await asyncio.gather(*map(execute_next, paths)) if problem]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="lessons, by the beginning of their name: 05; or all")
    parser.add_argument("--keep", action="store_true", help="write the notebooks to lessons/outputs")
    parser.add_argument("--limit", type=int, default=LIMIT, help="seconds of a lesson (%(default)s)")
    options = parser.parse_args()
    paths = [path for path in lessons() if path.name.startswith(tuple(options.names or [""]))]
    if not paths:
        parser.error(f"there is no lesson whose name begins with {' or '.join(options.names)}")
    if not FULL:
        os.environ["OMP_NUM_THREADS"] = "1"
    start = time.perf_counter()
    problems = asyncio.run(execute_all(paths, KEPT if options.keep else BUILT, options.limit))
    print(f"{len(paths)} lessons in {time.perf_counter() - start:.0f} s")
    print("\n\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
