"""Training steps: beside the tutorials' code, as a share of what the machine multiplies, and of the default presets.

    python benchmarks/training_speed.py [--rounds 7] [--tables tutorial peak default] [--clock wall] [--keep]

The rows of a table are measured in turn in one process. `tutorial` has the tutorials' own code for the same model
(batch 64 x 128, residual dropout 0.1 on both sides; theirs drops attention weights too). `peak` has the product of two
matrices, 2048 x 2048, and what steps of nanoGPT's model for one GPU, 384 wide, reach of its operations per second: six
for each token and number of a matrix, and attention's, of which the masked half is not counted. Beside busy neighbors,
one thread (OMP_NUM_THREADS=1) and --clock processor tell more than the wall's clock.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for both sides: a busy neighbor then costs little

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from side_by_side import Row, Work, arguments, compare, machine
from torch import Tensor
from tutorial_code import TutorialModel, training_steps

from clearhead.cli.environment import prepare_process
from clearhead.config import ModelConfig, RunConfig
from clearhead.config.presets import DEFAULTS, PRESETS, default_preset
from clearhead.data import prepare, training_batch
from clearhead.inspection import flops_per_token
from clearhead.models import build_model
from clearhead.training import Stepped, fit, has_bfloat16

RESULTS = Path(__file__).parent / "results" / "training_speed.md"
SIDE, PRODUCTS = 2048, 8  # of the matrices whose product is the peak, and how many of them are taken in a round
STEPS = 4  # of training in a round
BATCH, WIDE_BATCH = 64, 16  # of the tutorials' shape; and of the wide one, for which a processor has no room for 64
PRECISION = torch.bfloat16 if has_bfloat16(torch.device("cpu")) else torch.float32  # of steps by default
Changes = Mapping[str, Any]  # of a preset's options
NONE: Changes = {}


class Tables:
    """The rows of each table; all train on the same text."""

    def __init__(self, text: str) -> None:
        data = prepare(RunConfig.read({"data": {"source": text}}).data)
        self.tokens: NDArray[Any] = np.array(data.train)
        self.vocab_size = data.tokenizer.vocab_size

    def tutorial(self) -> Sequence[Row]:
        plain = TutorialModel(vocab_size=self.vocab_size)
        steps = training_steps(plain, torch.from_numpy(self.tokens).long(), BATCH)
        size = sum(p.numel() for p in plain.parameters())
        assert size == sum(p.numel() for p in build_model(self._config("tutorial").model).parameters())
        return [
            Row("tutorials' code", "float32", lambda: BATCH * plain.block_size * len(_some(steps))),
            Row("clearhead", "float32", self._tokens("tutorial", {"precision": "float32"})),
            Row("clearhead, as it trains by default", _type(PRECISION), self._tokens("tutorial")),
        ]

    def peak(self) -> Sequence[Row]:
        name, train = "nanogpt-baby", {"batch_size": WIDE_BATCH}
        kinds = {"no dropout": (0.0, 0.0), "dropout": (0.2, 0.0), "dropout, of attention weights too": (0.2, 0.2)}
        matrix = torch.ones(SIDE, SIDE, dtype=PRECISION)
        rows = [Row(f"product, {SIDE} x {SIDE} x {SIDE}", _type(PRECISION), lambda: _products(matrix))]
        for kind, (dropout, of_weights) in kinds.items():
            model = {"dropout": dropout, "attention_dropout": of_weights}
            flops = step_flops(self._config(name, train, model).model)
            tokens = self._tokens(name, train, model)
            rows.append(Row(f"{name}, batch {WIDE_BATCH} x 256", kind, lambda w=tokens, f=flops: w() * f / 1e9))  # type: ignore[misc]
        return rows

    def default(self) -> Sequence[Row]:
        presets = [default_preset(minutes=minutes) for minutes, _ in DEFAULTS["causal"]]
        return [Row(name, self._shape(name), self._tokens(name)) for name in presets]

    def _shape(self, preset: str) -> str:
        config = self._config(preset)
        return f"{config.train.batch_size} x {config.model.block_size}"

    def _config(self, preset: str, train: Changes = NONE, model: Changes = NONE) -> RunConfig:
        never = {"steps": 10**9, "eval_every": 10**9, "save_every": 10**9}
        changes = {"model": {"vocab_size": self.vocab_size, **model}, "train": {**never, **train}}
        return RunConfig.read(PRESETS[preset].options, changes)

    def _tokens(self, preset: str, train: Changes = NONE, model: Changes = NONE) -> Work:
        """Steps of a preset with changed options, and how many tokens those were."""
        config = self._config(preset, train, model)
        shape = {"block_size": config.model.block_size, "batch_size": config.train.batch_size}
        events = fit(
            build_model(config.model),
            config.train,
            lambda step: training_batch(self.tokens, **shape, seed=1, step=step),
            seed=1,
        )
        steps = (event for event in events if isinstance(event, Stepped))
        return lambda: sum(step.tokens for step in _some(steps))


def _some(steps: Iterator[Any]) -> list[Any]:
    return list(itertools.islice(steps, STEPS))


def _products(matrix: Tensor) -> float:
    """Multiply it with itself; how many operations that was, in 10^9."""
    for _ in range(PRODUCTS):
        matrix @ matrix
    return PRODUCTS * 2 * SIDE**3 / 1e9


def step_flops(model: ModelConfig) -> float:
    """Operations of a token in one step, forward and, twice as many, backward; a causal token sees half of the text."""
    masked = 2 * model.n_layers * model.n_heads * model.head_dim * model.block_size
    return 3 * (flops_per_token(model) - masked)


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


HEADS = {
    "tutorial": "training, batch 64 x 128 | products | tokens per second | ratio",
    "peak": "operations | | 10^9 per second | share",
    "default": "presets by the time that is given | batch | tokens per second | ratio",
}


def main() -> None:
    parser = arguments(__doc__, 7, RESULTS)
    parser.add_argument("--tables", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--text", default="shakespeare" if os.environ.get("CLEARHEAD_DATA") else "stories")
    args = parser.parse_args()
    prepare_process()  # the allocator, for both sides
    tables = Tables(args.text)
    lines = [f"{machine()}, {args.clock} clock; medians (lowest to highest) of {args.rounds} rounds, interleaved."]
    for name in args.tables:
        rows = compare(getattr(tables, name)(), args.rounds, args.clock)
        table = [f"| {HEADS[name]} |", "|---|---|---|---|", *rows]
        print("\n".join(table), flush=True)
        lines += ["", *table]
    if args.keep:
        RESULTS.write_text("# How fast a step is\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
