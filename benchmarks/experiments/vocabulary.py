"""Bits per byte by tokenizer, each trained for the same processor time: what `data.tokenizer = auto` goes by.

    python benchmarks/experiments/vocabulary.py TEXT... [--preset tiny] [--seconds 29] [--sizes char auto 1024 4096]

One thread and processor time, so that a busy machine changes little: 29 seconds of `tiny` are about the steps that two
quiet cores take within half a minute, 290 of `small` those within three minutes. The steps of all sizes are timed in
turn before the first training, and `auto` is what `data.tokenizer = auto` takes. With --dropout passes, a model has the
dropout that the default would have for as many readings of the text. The last tenth of each text is left out before
anything else, and the tenth before it is held out, so that nothing is chosen by what a training reports.
"""

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS
from clearhead.models import LanguageModel, build_model
from clearhead.training import Stepped, fit
from clearhead.workflows.planning import DROPOUTS
from clearhead.workflows.tasks import CausalTask

TO_TIME = 4, 3  # rounds over all sizes, and the steps of each, by whose median the number of steps is chosen
NEVER = 10**9


class Trial:
    """One text with one vocabulary, and the model that learns it."""

    def __init__(self, path: Path, size: str, preset: str, seed: int) -> None:
        tokens = {"auto": {}, "char": {"tokenizer": "char"}}.get(size, {"tokenizer": "bpe", "bpe_vocab_size": size})
        options = RunConfig.read(PRESETS[preset].options, {"data": {"source": str(path), **tokens}, "seed": seed})
        self.path, self.size, self.task = path, size, CausalTask.open(options.data)
        settings = {"model": self.task.model_settings()}
        self.config, _ = self.task.fit_to_data(RunConfig.read(options.model_dump(), settings), {})

    def trained(self, steps: int, stop: int = NEVER) -> tuple[LanguageModel, list[float]]:
        """A model after `steps` steps, or after `stop` of them, and the processor seconds of each."""
        options = {"steps": steps, "warmup_steps": max(1, min(10, steps // 10)), "eval_every": NEVER}
        config = RunConfig.read(self.config.model_dump(), {"train": {**options, "save_every": NEVER}})
        model, seconds, last = build_model(config.model, seed=config.seed), list[float](), time.process_time()
        for event in fit(model, config.train, self.task.batches(config), seed=config.seed, body=self.task.body(model)):
            if isinstance(event, Stepped):
                now = time.process_time()
                seconds.append(now - last)
                last = now
                if len(seconds) == stop:
                    break
        return model.eval(), seconds

    def row(self, steps: int, *, by_passes: bool) -> str:
        """Train; one line of the table."""
        passes = steps / self.task.steps_per_pass(self.config)
        if by_passes:
            dropout = next(dropout for most, dropout in DROPOUTS if passes <= most)
            self.config = RunConfig.read(self.config.model_dump(), {"model": {"dropout": dropout}})
        model, seconds = self.trained(steps)
        evaluation, prepared = self.task.evaluate(model, self.config), self.task.prepared
        bits = evaluation.loss / math.log(2) * evaluation.tokens / prepared.val_bytes
        size = self.size if self.size == "char" else f"{self.task.tokenizer.vocab_size:,}"
        name = f"{size} (auto)" if self.size == "auto" else size
        return (
            f"| {self.path.stem} | {name} | {prepared.bytes_per_token:.2f} | {steps:,} | {passes:.1f} | "
            f"{self.config.model.dropout:g} | {sum(seconds):.0f} | {bits:.3f} |"
        )


def chosen_steps(trials: Sequence[Trial], seconds: float) -> list[int]:
    """How many steps of each fit into so many processor seconds."""
    rounds, steps = TO_TIME
    timed: list[list[float]] = [[] for _ in trials]
    for _ in range(rounds):
        for trial, times in zip(trials, timed, strict=True):
            times += trial.trained(100, stop=steps + 1)[1][1:]
    return [max(20, int(seconds / statistics.median(times))) for times in timed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--seconds", type=float, default=29.0, help="of processor time for each training")
    parser.add_argument("--sizes", nargs="+", default=["char", "auto", "512", "1024", "2048", "4096", "8192"])
    parser.add_argument("--dropout", choices=("preset", "passes"), default="preset", help="where it comes from")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| text | vocabulary | bytes per token | steps | passes | dropout | processor seconds | bits per byte |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for text in args.texts:
            whole = text.read_text(encoding="utf-8")
            path = Path(folder) / text.name
            path.write_text(whole[: int(0.9 * len(whole))], encoding="utf-8")
            trials = [Trial(path, size, args.preset, args.seed) for size in args.sizes]
            for trial, steps in zip(trials, chosen_steps(trials, args.seconds), strict=True):
                print(trial.row(steps, by_passes=args.dropout == "passes"), flush=True)


if __name__ == "__main__":
    main()
