"""`clearhead trace` on models that nobody wrote an adapter for: 50 classes of transformers, and the benchmark's hosts.

    python benchmarks/doctor/tracing.py                        # the tables
    python benchmarks/doctor/tracing.py --part held-out        # one part: development, held-out or hosts
    python benchmarks/doctor/tracing.py --keep                 # and into benchmarks/results/trace.md

The classes are those that the doctor is tried on (known_good.py), the 50 whose names have the smallest SHA-256: nobody
chose them. What failed on the first half was mended; the second half was looked at once, afterwards. Each is built
small, called as the doctor calls it, and traced in a process of its own.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
import transformers
from known_good import architectures
from tables import arguments, publish

from clearhead.errors import ClearheadError
from clearhead.inspection import TraceTable
from clearhead.inspection.steps.axes import symbols_in
from clearhead.workflows import trace

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "trace.md"
CLASSES = 50
PARTS = ("development", "held-out", "hosts")


@dataclass(frozen=True)
class Traced:
    """One model: its table, or the sentence on why there is none."""

    name: str
    table: TraceTable | None
    sentence: str

    @property
    def named(self) -> str:
        """The share of steps that have a symbol among their axes."""
        assert self.table is not None
        steps = self.table.steps
        symbols = sum(any(map(symbols_in, step.axes)) for step in steps)
        return f"{100 * symbols / max(1, len(steps)):.0f} %"


def targets(part: str) -> list[str]:
    """What is traced in a part."""
    if part == "hosts":
        files = sorted(path for path in (HERE / "hosts").glob("*.py") if path.name != "__init__.py")
        return [f"{path}:build" for path in files]
    names = sorted(architectures(), key=lambda name: sha256(name.encode()).hexdigest())[:CLASSES]
    half = CLASSES // 2
    return [f"hf:{name}" for name in (names[:half] if part == "development" else names[half:])]


def traced(target: str, timeout: float) -> Traced:
    """Trace one, in a process of its own."""
    name = Path(target.removesuffix(":build")).stem if target.endswith(":build") else target
    try:
        table, sentence = trace(target, timeout=timeout), ""
    except ClearheadError as error:
        table, sentence = None, " ".join(str(error).split()).partition("; put this")[0]
    return Traced(name, table, sentence)


def page(part: str, cases: Sequence[Traced]) -> Iterator[str]:
    """The lines of a part."""
    good = [case for case in cases if case.table is not None]
    yield f"\n## {part.capitalize()}\n"
    others = "; the others say why not" if len(good) < len(cases) else ""
    yield f"{len(good)} of {len(cases)} traced without an adapter{others}.\n"
    yield "| model | call | steps | steps with a symbol | attentions | B, T, T_src, V |"
    yield "|---|---|---|---|---|---|"
    for case in good:
        assert case.table is not None
        sizes = ", ".join(f"{name} {size}" for name, size in case.table.sizes.items())
        cells = (case.name, f"`{case.table.call}`", len(case.table.steps), case.named, len(case.table.score_steps))
        yield f"| {' | '.join(map(str, cells))} | {sizes} |"
    if len(good) < len(cases):
        yield "\n| model | why not |"
        yield "|---|---|"
        yield from (f"| {case.name} | {case.sentence} |" for case in cases if case.table is None)


def main() -> None:
    parser = arguments(__doc__, RESULTS)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may be repeated")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a model")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    path = filter(None, (str(HERE), os.environ.get("PYTHONPATH")))
    os.environ["PYTHONPATH"] = os.pathsep.join(path)  # hosts of our own parts find `own_parts` here
    libraries = f"transformers {transformers.__version__}, torch {torch.__version__}"
    lines = [f"{libraries}, {platform.machine()}, one thread."]
    for part in args.part or PARTS:
        cases = []
        for target in targets(part):
            case = traced(target, args.timeout)
            print(case.name, case.sentence or "traced", flush=True)
            cases.append(case)
        lines += page(part, cases)
    publish("`trace` on models without an adapter", lines, RESULTS, keep=args.keep)


if __name__ == "__main__":
    main()
