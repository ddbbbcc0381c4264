"""How much is table and how much Transformer: the same model without n-gram tables, with them, and with more blocks.

    python benchmarks/experiments/ngram_tables.py [--steps 300] [--seeds 3] [--longest 4] [--rows 16384] [--keep]

Every training takes the same steps over the same batches, with the options of the preset `ngram-tables`. The losses are
those of the whole held-out split. Seconds are of all steps and evaluations.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import argparse
import sys
import time

from trials import evaluations, in_steps, report

from clearhead.cli.environment import prepare_process
from clearhead.config import RunConfig
from clearhead.config.presets import PRESETS
from clearhead.inspection import estimate_cost
from clearhead.models import build_model
from clearhead.options import Settings
from clearhead.training import Evaluated, fit
from clearhead.workflows.tasks import Task, open_task


def variants(longest: int) -> dict[str, Settings]:
    """What is compared, as options of the model."""
    alone: Settings = {"embedding_ngrams": 1, "logit_ngrams": 1}
    in_embedding = alone | {"embedding_ngrams": longest}
    return {
        "the Transformer alone": alone,
        "tables in the embedding": in_embedding,
        "tables in the logits": alone | {"logit_ngrams": longest},
        "tables in both": {"embedding_ngrams": longest, "logit_ngrams": longest},
        "four blocks alone": alone | {"n_layers": 4},
        "four blocks, tables in the embedding": in_embedding | {"n_layers": 4},
    }


def losses(config: RunConfig, task: Task) -> tuple[dict[int, float], float]:
    """Step -> loss on held-out text, of one training; and its seconds."""
    model, start_time = build_model(config.model, seed=config.seed), time.perf_counter()
    by_step: dict[int, float] = {}
    events = fit(
        model, config.train, task.batches(config), seed=config.seed, evaluate=lambda: task.evaluate(model, config)
    )
    for event in events:
        if isinstance(event, Evaluated):
            by_step[event.step] = event.loss
    return by_step, time.perf_counter() - start_time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of each training")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of everything, from different seeds")
    parser.add_argument("--longest", type=int, default=4, help="tokens of the longest n-gram")
    parser.add_argument("--rows", type=int, default=16_384, help="for the n-grams of each length, at most")
    parser.add_argument("--source", default="shakespeare" if os.environ.get("CLEARHEAD_DATA") else "stories")
    parser.add_argument("--keep", action="store_true", help="write the table into benchmarks/results")
    args = parser.parse_args()
    prepare_process()
    layer = PRESETS["ngram-tables"].options
    data: Settings = {"data": {"source": args.source}}
    task = open_task(RunConfig.read(layer, data))
    start = in_steps(RunConfig.read(layer, data, {"model": task.model_settings()}), args.steps)
    rows: list[tuple[object, ...]] = []
    for name, options in variants(args.longest).items():
        for seed in range(1, args.seeds + 1):
            print(f"{name}, seed {seed}", file=sys.stderr)
            model = {"ngram_rows": args.rows} | options
            config = RunConfig.read(start.model_dump(), {"model": model, "seed": seed})
            by_step, seconds = losses(config, task)
            parts = estimate_cost(config.model).parts
            tables = parts["ngram_tables"]
            sizes = (f"{sum(parts.values()) - tables:,}", f"{tables:,}", f"{seconds:.1f}")
            rows.append((name, seed, *sizes, *(by_step[step] for step in evaluations(config))))
    steps = [f"step {step:,}" for step in evaluations(start)]
    report("ngram_tables", args, ["model", "seed", "Transformer", "tables", "seconds", *steps], rows)


if __name__ == "__main__":
    main()
