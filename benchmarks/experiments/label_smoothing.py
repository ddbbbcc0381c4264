"""What label smoothing does to loss, translations and calibration.

    python benchmarks/experiments/label_smoothing.py [--minutes 10 | --steps N] [--shares 0 0.1] [--seeds 3] [--keep]

The loss that is compared is the plain cross entropy on held-out pairs, whatever was trained on. Calibration is the
expected calibration error over ten bins (Guo et al. 2017, arXiv 1706.04599, equation 3): how far, on average, the
probability of the likeliest next token is from the share of such tokens that are right. Müller et al. 2019
(arXiv 1906.02629) found smoothed translators better calibrated, and better translators in spite of a worse loss.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from trials import Trial, options, parse, report

from clearhead.data import IGNORED
from clearhead.inference import evaluating
from clearhead.models import EncoderDecoder

BINS = 10


def expected_calibration_error(confidence: Tensor, right: Tensor, bins: int = BINS) -> float:
    """Mean distance of confidence (N,) from the share of right answers (N,) in bins of equal width, by their size."""
    bin_of = (confidence * bins).long().clamp(max=bins - 1)
    surplus = torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_of, confidence.double() - right.double())
    return surplus.abs().sum().item() / len(confidence)


def answers(model: EncoderDecoder, batches: Iterable[Sequence[Tensor]]) -> tuple[Tensor, Tensor]:
    """For every counted target: the probability of the likeliest token (N,), and whether it is the target (N,)."""
    confidence, right = [], []
    with evaluating(model), torch.inference_mode():
        for batch in batches:
            *inputs, targets = (tensor.to(model.device) for tensor in batch)
            best = model(*inputs).float().softmax(-1).max(-1)  # (B, T)
            counted = targets != IGNORED
            confidence.append(best.values[counted].cpu())
            right.append((best.indices == targets)[counted].cpu())
    return torch.cat(confidence), torch.cat(right)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--shares", nargs="+", type=float, default=[0.0, 0.1], help="of smoothing, to compare")
    parser.add_argument("--source", default="multi30k", help="a corpus or file of pairs")
    args = parse(parser)
    trial = Trial.open(args, {"data": {"source": args.source}})
    rows: list[tuple[object, ...]] = []
    for seed in range(1, args.seeds + 1):
        for share in args.shares:
            train = trial.config.train.model_copy(update={"label_smoothing": share})
            smoothed = Trial(trial.config.model_copy(update={"train": train}), trial.task)
            model = (trained := smoothed.train(seed=seed)).model
            confidence, right = answers(model, smoothed.task.held_out(smoothed.config))
            error = expected_calibration_error(confidence, right)
            bleu = [smoothed.bleu(model, beam=beam, sentences=args.sentences) for beam in (1, 5)]
            means = confidence.double().mean().item(), right.double().mean().item()
            rows.append((f"{share:g}", seed, train.steps, trained.val_loss, *bleu, *means, error))
    header = ["smoothing", "seed", "steps", "validation loss", "BLEU, greedy", "BLEU, beam 5"]
    report("label_smoothing", args, [*header, "confidence", "accuracy", "calibration error"], rows)


if __name__ == "__main__":
    main()
