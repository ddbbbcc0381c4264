"""Before the first step, and beside the steps: starting, reading a text, evaluating; each beside what it stands on.

    python benchmarks/starting_speed.py [--rounds 3] [--megabytes 100] [--keep]

Three tables. Seconds of whole processes: importing, and `clearhead train FILE` until it has told its first step.
Megabytes of text a second: by NumPy alone and by `tokenizers` alone, and by `clearhead`'s preparation, which also
hashes the file, refuses what is no text, and cuts it. Tokens a second of evaluations: by the model called on the same
windows and nothing else, by `evaluate`, and by the evaluation along a training, in the precision of the training.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for all sides: a busy neighbor then costs little
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from side_by_side import Row, Work, arguments, compare, compile_package, machine, spread
from tokenizers import models, pre_tokenizers, trainers

from clearhead.cli.environment import prepare_process
from clearhead.config import DataConfig, RunConfig
from clearhead.config.presets import default_preset, preset
from clearhead.data import prepare, stories
from clearhead.inference import evaluate
from clearhead.models import build_model
from clearhead.workflows.tasks import open_task

RESULTS = Path(__file__).parent / "results" / "starting_speed.md"
PROCESSES = {
    "`import torch`": ("import torch", None),
    "`import clearhead`": ("import clearhead", None),
    "`clearhead trace --preset tutorial`": (
        "import sys; from clearhead.cli import main; sys.argv[1:] = 'trace --preset tutorial'.split(); main()",
        None,
    ),
    "`clearhead train FILE`, until the first step": ("from clearhead.cli import main; main()", "step "),
}
EVALUATED = 65_536  # tokens
BPE = 4096


def seconds_of(program: str, arguments: Sequence[str], until: str | None, folder: Path, clock: str) -> float:
    """From the start of a process to its end, or to the first line that begins so; the wall's, or the processor's."""

    def now() -> float:
        return time.perf_counter() if clock == "wall" else sum(os.times()[2:4])

    start_time = now()
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        if until is not None:
            assert any(line.startswith(until) for line in process.stdout), "the process ended before"
            process.kill()
        process.wait()
    return now() - start_time


def starting(rounds: int, clock: str, folder: Path) -> list[str]:
    """The lines of the first table; processes in turn."""
    text = folder / "my.txt"
    text.write_text(stories.text(1_000_000, 1), encoding="utf-8")
    taken: dict[str, list[float]] = {name: [] for name in PROCESSES}
    for number in range(rounds):
        for name, (program, until) in PROCESSES.items():
            arguments = ["train", str(text), "--out", str(folder / f"run{number}")] if until else []
            taken[name].append(seconds_of(program, arguments, until, folder, clock))
    lines = ["| process | seconds |", "|---|---|"]
    for name, all_seconds in taken.items():
        lines.append(f"| {name} | {spread(all_seconds)} |")
    return lines


class Reading:
    """The sides of the second table, on one file."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder, self.size = path, folder, path.stat().st_size / 1e6

    def characters(self) -> list[Row]:
        """Characters as tokens."""
        return [Row("NumPy", "", self._numpy), Row("clearhead", "", self._ours("char"))]

    def pieces(self) -> list[Row]:
        """A vocabulary of pieces of words, learnt from the text, and the text in it."""
        return [Row("tokenizers", "", self._tokenizers), Row("clearhead", "", self._ours("bpe"))]

    def _ours(self, tokenizer: str) -> Work:
        config = DataConfig(source=str(self.path), tokenizer=tokenizer, bpe_vocab_size=BPE)

        def work() -> float:
            with tempfile.TemporaryDirectory(dir=self.folder) as cache:  # a new one, where nothing is found
                prepare(config, cache=Path(cache))
            return self.size

        return work

    def _numpy(self) -> float:
        codes = np.frombuffer(self.path.read_text(encoding="utf-8").encode("utf-32-le"), dtype=np.uint32)
        table = np.zeros(0x110000, dtype=np.uint8)
        alphabet = np.flatnonzero(np.bincount(codes))
        table[alphabet] = np.arange(len(alphabet))
        self._write(table[codes])
        return self.size

    def _tokenizers(self) -> float:
        library = tokenizers.Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=BPE, min_frequency=2, show_progress=False, initial_alphabet=alphabet, special_tokens=[]
        )
        library.train([str(self.path)], trainer)
        with self.path.open(encoding="utf-8") as file:
            lines = file.readlines()
        encoded = library.encode_batch_fast(lines, add_special_tokens=False)
        self._write(np.concatenate([np.array(line.ids, dtype=np.uint16) for line in encoded]))
        return self.size

    def _write(self, ids: NDArray[Any]) -> None:
        ids.tofile(self.folder / "ids.bin")


def evaluating(text: Path) -> list[Row]:
    """The sides of the third table: the default preset's model, untrained, on what is held out of the text."""
    layer = {"data": {"source": str(text), "tokenizer": "char"}, "train": {"eval_tokens": EVALUATED}}
    config = RunConfig.read(preset(default_preset()).options, layer)
    task = open_task(config)
    config = RunConfig.read(config.model_dump(), {"model": task.model_settings()})
    model = build_model(config.model, seed=1).eval()

    def forward() -> float:
        with torch.inference_mode():
            return float(sum(model(inputs)[..., 0].numel() for inputs, _ in task.held_out(config, limit=EVALUATED)))

    return [
        Row("the model alone", "float32", forward),
        Row("`evaluate`", "float32", lambda: evaluate(model, task.held_out(config, limit=EVALUATED)).tokens),
        Row("along a training", "as it trains here", lambda: task.evaluate(model, config).tokens),
    ]


def main() -> None:
    parser = arguments(__doc__, 3, RESULTS)
    parser.add_argument("--megabytes", type=int, default=100, help="of text")
    args = parser.parse_args()
    compile_package()
    prepare_process()  # the allocator, for all sides
    head = "| {} | | {} | ratio |\n|---|---|---|---|"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CLEARHEAD_CACHE"] = str(folder / "cache")
        text = folder / "text.txt"
        text.write_text(stories.text(1_000_000, 1) * args.megabytes, encoding="utf-8")
        reading = Reading(text, folder)
        page = [
            f"{machine()}, tokenizers "
            f"{tokenizers.__version__}, {args.rounds} rounds, interleaved, {args.clock} clock; "
            "medians (lowest to highest).\n",
            *starting(args.rounds, args.clock, folder),
        ]
        for title, unit, rows in (
            (f"{args.megabytes} MB as characters", "MB per second", reading.characters()),
            (f"{args.megabytes} MB as BPE of {BPE:,}, learnt and encoded", "MB per second", reading.pieces()),
            (f"{EVALUATED:,} tokens evaluated", "tokens per second", evaluating(text)),
        ):
            page += ["", head.format(title, unit), *compare(rows, args.rounds, args.clock)]
    print("\n".join(page))
    if args.keep:
        RESULTS.write_text("\n".join(["# Before and beside the steps\n", *page, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
