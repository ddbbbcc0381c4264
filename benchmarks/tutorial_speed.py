"""Training and generation of the `tutorial` shape against the tutorials' own code, interleaved in one process.

    python benchmarks/tutorial_speed.py [--rounds 7] [--text FILE]

Prints tokens per second of both (median over rounds, lowest and highest) and the ratio, as a table.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for both sides: a busy neighbour then costs little

import argparse
import itertools
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tutorial_code import TutorialModel, training_steps

from clearhead.config import RunConfig, SamplingConfig
from clearhead.data import prepare, training_batch
from clearhead.inference import generate_ids
from clearhead.models import CausalLM, build
from clearhead.presets import PRESETS
from clearhead.training import Stepped, fit

STEPS, BATCH, NEW_TOKENS, STREAMS = 4, 64, 256, 16
Work = Callable[[], int]  # does some and returns how many tokens that was


def rate(work: Work) -> float:
    """Tokens per second of one piece of work."""
    began = time.perf_counter()
    return work() / (time.perf_counter() - began)


def compare(name: str, theirs: Work, ours: Work, rounds: int) -> str:
    """One line of the table: A B A B, medians, and the ratio of the medians."""
    theirs(), ours()  # warm up
    pairs = [(rate(theirs), rate(ours)) for _ in range(rounds)]
    columns = [sorted(column) for column in zip(*pairs, strict=True)]
    cells = [f"{statistics.median(c):,.0f} ({c[0]:,.0f} to {c[-1]:,.0f})" for c in columns]
    ratio = statistics.median(columns[1]) / statistics.median(columns[0])
    return f"| {name} | {cells[0]} | {cells[1]} | {ratio:.2f} |"


def ours_training(config: RunConfig, tokens: NDArray[Any]) -> Iterator[Stepped]:
    model = build(config.model)
    train = config.train.model_copy(update={"batch_size": BATCH, "steps": 10**9, "eval_every": 10**9})

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return training_batch(tokens, block_size=config.model.block_size, batch_size=BATCH, seed=1, step=step)

    return (event for event in fit(model, train, batch, seed=1) if isinstance(event, Stepped))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--text", default="shakespeare" if os.environ.get("CLEARHEAD_DATA") else "stories")
    given = parser.parse_args()
    data = prepare(RunConfig.read({"data": {"source": given.text}}).data)
    layer = {**PRESETS["tutorial"].options}
    config = RunConfig.read(layer, {"model": {"vocab_size": data.tokenizer.vocab_size}})

    plain = TutorialModel(vocab_size=data.tokenizer.vocab_size)
    model = build(config.model).eval()
    assert isinstance(model, CausalLM)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in model.parameters())
    their_steps = training_steps(plain, torch.from_numpy(np.array(data.train)).long(), BATCH)
    our_steps = ours_training(config, data.train)
    tokens = STEPS * BATCH * config.model.block_size
    prompt = [int(token) for token in data.val[:16]]
    fresh = TutorialModel(vocab_size=data.tokenizer.vocab_size).eval()

    def take(steps: Iterator[object]) -> int:
        assert len(list(itertools.islice(steps, STEPS))) == STEPS
        return tokens

    def write(streams: int) -> int:
        sampling = SamplingConfig(max_new_tokens=NEW_TOKENS, temperature=1.0, seed=1)
        return sum(len(column) for column in generate_ids(model, [prompt] * streams, sampling))

    def rewrite(streams: int) -> int:
        fresh.generate(torch.tensor([prompt] * streams), NEW_TOKENS)
        return streams * NEW_TOKENS

    cores = torch.get_num_threads()
    print(f"{platform.machine()}, {cores} threads, torch {torch.__version__}, text {Path(given.text).name}")
    print("\n| tokens per second | tutorial's code | clearhead | ratio |\n|---|---|---|---|")
    print(compare(f"training, batch {BATCH} x 128", lambda: take(their_steps), lambda: take(our_steps), given.rounds))
    for streams in (1, STREAMS):
        label = f"generation, {streams} stream{'s' * (streams > 1)}, {NEW_TOKENS} tokens"
        print(compare(label, lambda n=streams: rewrite(n), lambda n=streams: write(n), given.rounds))  # type: ignore[misc]


if __name__ == "__main__":
    main()
