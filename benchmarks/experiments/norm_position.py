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
    args = parse(parser)
    settings = {"data": {"source": args.source}, "train": {"learning_rate": args.rate}}
    args.steps = args.steps or _open(args, settings, max(args.depths)).config.train.steps  # of all, for one header
    args.minutes = None
    rows: list[tuple[object, ...]] = []
    drawings = {}
    for depth in args.depths:
        trial = _open(args, settings, depth)
        curves = {}
        for norm_position, warm, seed in itertools.product(("pre", "post"), (True, False), range(1, args.seeds + 1)):
            name = f"{norm_position}-norm, {'warm-up' if warm else 'no warm-up'}"
            print(f"{depth} layers, {name}, seed {seed}", file=sys.stderr)
            trained = _varied(trial, norm_position, warm, args.warmup).train(seed=seed)
            curves[name if args.seeds == 1 else f"{name}, seed {seed}"] = trained.curve
            losses = dict(trained.curve.validation)
            rows.append((depth, name, seed, *(losses.get(step, "-") for step in evaluations(trial.config))))
        drawings[f"norm_position-{depth}"] = curves_picture(
            curves, f"{depth} + {depth} layers", trial.config.model.vocab_size
        )
    header = ["layers", "norm", "seed", *(f"step {step:,}" for step in evaluations(trial.config))]
    report("norm_position", args, header, rows, drawings)


def _open(args: argparse.Namespace, settings: Settings, depth: int) -> Trial:
    return Trial.open(args, OPTIONS, settings, {"model": {"n_layers": depth, "n_encoder_layers": depth}})


def _varied(trial: Trial, norm_position: str, warm: bool, warmup: float) -> Trial:
    """The trial with the norm in this place and with a warm-up, or none."""
    model = trial.config.model.model_copy(update={"norm_position": norm_position})
    warmup_steps = max(1, round(warmup * trial.config.train.steps)) if warm else 0
    train = trial.config.train.model_copy(update={"warmup_steps": warmup_steps})
    return Trial(trial.config.model_copy(update={"model": model, "train": train}), trial.task)


if __name__ == "__main__":
    main()
