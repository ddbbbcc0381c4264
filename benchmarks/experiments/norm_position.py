"""Where the norm stands, with a warm-up and without, in shallow and deep translators: the losses on the way.

    python benchmarks/experiments/norm_position.py [--minutes 10 | --steps N] [--depths 2 6 12] [--keep]

Xiong et al. 2020 (arXiv 2002.04745): post-norm has large gradients near its output at first, so it needs a warm-up, the
more so the deeper it is; pre-norm does not. AdamW without clipping, which would hide it; Glorot's initialization. The
table has losses on held-out pairs, '-' where a training gave up; a picture for each depth the losses of training.
--minutes are those of the deepest.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import argparse
import itertools
import math
import sys

from pictures import curves_picture
from trials import Trial, evaluations, options, parse, report

from clearhead.options import Settings

OPTIONS = {
    "model": {"init": "xavier"},
    "train": {
        "optimizer": "adamw",
        "beta2": 0.98,
        "adam_eps": 1e-9,
        "weight_decay": 0.0,
        "max_grad_norm": math.inf,
        "schedule": "linear",
        "min_lr_ratio": 0.1,
        "label_smoothing": 0.0,
    },
}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--depths", nargs="+", type=int, default=[2, 6, 12], help="layers of encoder and of decoder")
    parser.add_argument("--rate", type=float, default=1e-3, help="the learning rate's peak")
    parser.add_argument("--warmup", type=float, default=0.1, help="share of the steps in which it is reached")
    parser.add_argument("--source", default="multi30k", help="a corpus or file of pairs")
    given = parse(parser)
    told = {"data": {"source": given.source}, "train": {"learning_rate": given.rate}}
    given.steps = given.steps or _open(given, told, max(given.depths)).config.train.steps  # of all, for one header
    given.minutes = None
    rows: list[tuple[object, ...]] = []
    drawings = {}
    for depth in given.depths:
        trial = _open(given, told, depth)
        curves = {}
        for place, warm, seed in itertools.product(("pre", "post"), (True, False), range(1, given.seeds + 1)):
            name = f"{place}-norm, {'warm-up' if warm else 'no warm-up'}"
            print(f"{depth} layers, {name}, seed {seed}", file=sys.stderr)
            found = _varied(trial, place, warm, given.warmup).train(seed=seed)
            curves[name if given.seeds == 1 else f"{name}, seed {seed}"] = found.curve
            losses = dict(found.curve.validation)
            rows.append((depth, name, seed, *(losses.get(step, "-") for step in evaluations(trial.config))))
        drawings[f"norm_position-{depth}"] = curves_picture(
            curves, f"{depth} + {depth} layers", trial.config.model.vocab_size
        )
    header = ["layers", "norm", "seed", *(f"step {step:,}" for step in evaluations(trial.config))]
    report("norm_position", given, header, rows, drawings)


def _open(given: argparse.Namespace, told: Settings, depth: int) -> Trial:
    return Trial.open(given, OPTIONS, told, {"model": {"n_layers": depth, "n_encoder_layers": depth}})


def _varied(trial: Trial, place: str, warm: bool, warmup: float) -> Trial:
    """The trial with the norm in this place and with a warm-up, or none."""
    model = trial.config.model.model_copy(update={"norm_position": place})
    warmup_steps = max(1, round(warmup * trial.config.train.steps)) if warm else 0
    train = trial.config.train.model_copy(update={"warmup_steps": warmup_steps})
    return Trial(trial.config.model_copy(update={"model": model, "train": train}), trial.task)


if __name__ == "__main__":
    main()
