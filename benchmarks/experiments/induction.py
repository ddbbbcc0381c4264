"""Induction heads: a model learns to copy what it has read before, and the induction score names the heads that do it.

    python benchmarks/experiments/induction.py [--layers 3] [--heads 4] [--steps 400] [--seeds 3] [--keep]

Random tokens are repeated after a number of them that changes from row to row: nothing but what was read before tells
the next token. Without the heads with a high induction score, the loss on what is repeated goes back to where it was
before the training; without as many others it does not. Without the heads that attend to the token before it goes back
as well: they are the other half of the circuit (Olsson et al. 2022, arXiv 2209.11895). Heads write their mean instead
of what they compute, because the rest of the model counts on it.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from trials import report

from clearhead.cli.environment import prepare_process
from clearhead.config import ModelConfig, TrainConfig
from clearhead.inference import evaluate
from clearhead.inspection import at_heads, attention_sites, intervene, mean_activations, measure_heads
from clearhead.inspection.capture.intervention import Edit
from clearhead.models import DecoderLM
from clearhead.training import fit

VOCAB_SIZE, BLOCK_SIZE, SHORTEST, ROWS = 64, 64, 8, 32
HIGH = 0.3  # a head with so much attention to a pattern follows it
DRAWS = 10  # choices of other heads
Head = tuple[int, int]  # layer and head


@dataclass(frozen=True)
class Ablated:
    """Losses on repeated tokens, in nats: of the whole model, and without heads."""

    induction: list[Head]
    previous: list[Head]
    whole: float
    without_induction: float
    without_others: float
    without_previous: float
    fresh: float


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Rows of random tokens that repeat after 8 to 32 of them; what is repeated counts, and nothing else."""
    generator = torch.Generator().manual_seed(step)
    period = torch.randint(SHORTEST, BLOCK_SIZE // 2 + 1, (ROWS, 1), generator=generator)
    tokens = torch.randint(VOCAB_SIZE, (ROWS, BLOCK_SIZE), generator=generator)
    ids = tokens.gather(1, torch.arange(BLOCK_SIZE + 1) % period)  # (B, T + 1)
    is_new = torch.arange(1, BLOCK_SIZE + 1) < period + SHORTEST  # the first of the repeated tokens tell the period
    return ids[:, :-1], ids[:, 1:].masked_fill(is_new, -100)


def learn(seed: int, steps: int, layers: int, heads: int) -> DecoderLM:
    """A model that has learned to copy."""
    config = ModelConfig(
        vocab_size=VOCAB_SIZE,
        block_size=BLOCK_SIZE,
        n_layers=layers,
        n_heads=heads,
        d_model=16 * heads,
        positions="rope",
    )
    model = DecoderLM(config, seed=seed)
    train = TrainConfig(steps=steps, optimizer="muon", learning_rate=0.01, schedule="linear", warmup_steps=20)
    for _ in fit(model, train, batch, seed=seed):
        pass
    return model


def loss_without(model: DecoderLM, heads: Sequence[Head]) -> float:
    """The loss on repeated tokens that it has not read, where these heads write their mean."""
    batches = [batch(10**6 + index) for index in range(8)]
    means, edits = mean_activations(model, batches), dict[str, Edit]()
    for site in attention_sites(model):
        name = f"{site.name}.mixed"
        if chosen := [head for layer, head in heads if layer == site.layer]:
            edits[name] = at_heads(means[name], *chosen)
    with intervene(model, edits):
        return evaluate(model, batches).loss


def ablate(model: DecoderLM, seed: int) -> Ablated:
    """Find the heads by their scores, and take them out."""
    table = measure_heads(model).heads
    induction = [(head.layer, head.head) for head in table if (head.induction or 0) > HIGH]
    previous = [(head.layer, head.head) for head in table if (head.previous_token or 0) > HIGH]
    others = [head for head in ((entry.layer, entry.head) for entry in table) if head not in {*induction, *previous}]
    draw = random.Random(seed)
    draws = [draw.sample(others, min(len(induction), len(others))) for _ in range(DRAWS)]
    return Ablated(
        induction,
        previous,
        whole=loss_without(model, []),
        without_induction=loss_without(model, induction),
        without_others=sum(loss_without(model, heads) for heads in draws) / DRAWS,
        without_previous=loss_without(model, previous),
        fresh=loss_without(DecoderLM(model.config, seed=seed), []),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400, help="of each training")
    parser.add_argument("--seeds", type=int, default=3, help="trainings, from different seeds")
    parser.add_argument("--keep", action="store_true", help="write the table into benchmarks/results")
    args = parser.parse_args()
    prepare_process()
    rows = []
    for seed in range(1, args.seeds + 1):
        result = ablate(learn(seed, args.steps, args.layers, args.heads), seed)
        heads = (" ".join(f"{layer}.{head}" for layer, head in part) for part in (result.induction, result.previous))
        losses = (result.fresh, result.whole, result.without_induction, result.without_others, result.without_previous)
        rows.append((seed, *heads, *losses))
    parts = ("induction heads", "as many others", "previous-token heads")
    header = ("seed", parts[0], parts[2], "fresh", "trained", *(f"without {part}" for part in parts))
    report("induction", args, header, rows)
    print(f"ln {VOCAB_SIZE} = {math.log(VOCAB_SIZE):.3f}")


if __name__ == "__main__":
    main()
