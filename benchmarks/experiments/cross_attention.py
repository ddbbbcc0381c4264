"""What cross-attention is worth: the same translator with it and without, trained alike, BLEU beside BLEU.

    python benchmarks/experiments/cross_attention.py [--minutes 10 | --steps N] [--sources pairs multi30k] [--keep]

Without cross-attention no word of the source reaches the decoder: what is left is a language model of the targets. Its
loss is not much higher, which is why a loss alone does not tell that a translator reads its source.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from typing import Any

from torch import Tensor, nn
from trials import Trial, options, parse, report

from clearhead.models import EncoderDecoder
from clearhead.parts import Block


class Passing(nn.Module):
    """A sublayer that hands its input on."""

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        """(B, T, D), unchanged."""
        return x


def without_cross_attention(model: EncoderDecoder) -> None:
    """The decoder no longer reads the memory."""
    for block in model.decoder.blocks:
        assert isinstance(block, Block)
        block.register_module("cross_attention", Passing())


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--sources", nargs="+", default=["pairs", "multi30k"], help="corpora or files of pairs")
    args = parse(parser)
    rows: list[tuple[object, ...]] = []
    for source in args.sources:
        trial = Trial.open(args, {"data": {"source": source}})
        for name, change in (("with", None), ("without", without_cross_attention)):
            for seed in range(1, args.seeds + 1):
                trained = trial.train(seed=seed, change=change)
                greedy, beam = (trial.bleu(trained.model, beam=beam, sentences=args.sentences) for beam in (1, 5))
                size = sum(parameter.numel() for parameter in trained.model.parameters())
                steps = trial.config.train.steps
                rows.append((source, name, seed, size, steps, trained.val_loss, greedy, beam))
    header = (
        "pairs",
        "cross-attention",
        "seed",
        "parameters",
        "steps",
        "validation loss",
        "BLEU, greedy",
        "BLEU, beam 5",
    )
    report("cross_attention", args, header, rows)


if __name__ == "__main__":
    main()
