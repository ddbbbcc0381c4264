"""Bits per byte by tokenizer, each trained for the same processor time: what `data.tokenizer = auto` goes by.

    python benchmarks/experiments/vocabulary.py TEXT... [--preset tiny] [--seconds 29] [--sizes char 512 1024 2048 4096]

One thread and processor time, so that a busy machine changes little: 29 seconds of `tiny` are about the steps that two
quiet cores take within half a minute, 245 of `small` those within three minutes. The last tenth of each text is left
out before anything else, and the tenth before it is held out, so that nothing is chosen by what a training reports.
"""

import argparse
import math
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS
from clearhead.models import LanguageModel, build_model
from clearhead.training import Stepped, fit
from clearhead.workflows.tasks import CausalTask

TO_TIME = 10  # steps, by whose median the number of steps is chosen
NEVER = 10**9


def trained(task: CausalTask, config: RunConfig, steps: int, stop: int = NEVER) -> tuple[LanguageModel, list[float]]:
    """A model after `steps` steps, or after `stop` of them, and the processor seconds of each."""
    options = {"steps": steps, "warmup_steps": max(1, min(10, steps // 10)), "eval_every": NEVER, "save_every": NEVER}
    config = RunConfig.read(config.model_dump(), {"train": options})
    model, seconds, last = build_model(config.model, seed=1), list[float](), time.process_time()
    for event in fit(model, config.train, task.batches(config), seed=1, body=task.body(model)):
        if isinstance(event, Stepped):
            now = time.process_time()
            seconds.append(now - last)
            last = now
            if len(seconds) == stop:
                break
    return model.eval(), seconds


def row(path: Path, size: str, preset: str, seconds: float) -> str:
    """One line of the table."""
    tokens = {"tokenizer": "char"} if size == "char" else {"tokenizer": "bpe", "bpe_vocab_size": int(size)}
    options = RunConfig.read(PRESETS[preset].options, {"data": {"source": str(path), **tokens}})
    task = CausalTask.open(options.data)
    config, _ = task.fit_to_data(RunConfig.read(options.model_dump(), {"model": task.model_settings()}), {})
    _, timed = trained(task, config, 100, stop=TO_TIME)
    steps = max(20, int(seconds / statistics.median(timed)))
    model, _ = trained(task, config, steps)
    evaluation = task.evaluate(model, config)
    bits = evaluation.loss / math.log(2) * evaluation.tokens / task.prepared.val_bytes
    per_token = task.prepared.val_bytes / len(task.prepared.val)
    return f"| {path.stem} | {size} | {per_token:.2f} | {steps:,} | {bits:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--seconds", type=float, default=29.0, help="of processor time for each training")
    parser.add_argument("--sizes", nargs="+", default=["char", "512", "1024", "2048", "4096"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| text | vocabulary | bytes per token | steps | bits per byte |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for text in args.texts:
            whole = text.read_text(encoding="utf-8")
            path = Path(folder) / text.name
            path.write_text(whole[: int(0.9 * len(whole))], encoding="utf-8")
            for size in args.sizes:
                print(row(path, size, args.preset, args.seconds), flush=True)


if __name__ == "__main__":
    main()
