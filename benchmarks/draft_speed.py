"""Guesses from earlier n-grams (`--draft ngrams`), beside the same engine without them, interleaved in one process.

    python benchmarks/draft_speed.py [--rounds 5] [--shapes 0.8M 124M] [--keep]

One stream, on one thread, of two texts that an untrained model writes after a prompt of 16 tokens: the likeliest
tokens, which soon repeat themselves (nearly every guess is right), and drawn ones, which do not (nearly every guess is
wrong). Whose text is between the two gains what is between. The texts with guesses are compared with those without.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from pathlib import Path

import torch
from generation_speed import GPT2, PROMPT, SHAPES
from side_by_side import Row, Work, arguments, compare, machine

from clearhead.cli.environment import prepare_process
from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import Engine, stream_ids
from clearhead.models import CausalLM, build_model

TEXTS = {
    "repeats itself": SamplingConfig(greedy=True, max_new_tokens=96),
    "does not": SamplingConfig(seed=1, max_new_tokens=96),
}
WAYS = [("eager", "float32"), ("native", "float32"), ("native", "bfloat16"), ("native", "int8")]
RESULTS = Path(__file__).parent / "results" / "draft_speed.md"


def rows(model: CausalLM, prompt: list[int], sampling: SamplingConfig) -> Iterator[Row]:
    """Each engine, without guesses and with."""
    for engine, weights in WAYS:
        expected: list[int] = []
        for draft in (None, "ngrams"):
            kept = Engine(model, EngineConfig.read({"engine": engine, "dtype": weights, "draft": draft}))
            yield Row(engine, f"{weights} | {draft or 'none'}", writing(kept, prompt, sampling, expected))


def writing(engine: Engine, prompt: list[int], sampling: SamplingConfig, expected: list[int]) -> Work:
    def write() -> float:
        columns = stream_ids(engine.source, [prompt], sampling, engine=engine, on_notice=print)
        tokens = [token for column in columns for token in column.values()]
        expected.extend([] if expected else tokens)
        assert tokens == expected, "guesses changed the text"
        return len(tokens)

    return write


def main() -> None:
    parser = arguments(__doc__, 5, RESULTS)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    args = parser.parse_args()
    prepare_process()
    lines = [f"{machine()}, {args.clock} clock, {args.rounds} rounds, interleaved; 96 new tokens."]
    for shape in args.shapes:
        model = build_model(ModelConfig.read(SHAPES[shape], GPT2)).eval()
        assert isinstance(model, CausalLM)
        prompt = torch.randint(model.config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()
        for text, sampling in TEXTS.items():
            head = f"| {shape}, a text that {text} | weights | draft | tokens per second | ratio |"
            table = [
                head,
                "|---|---|---|---|---|",
                *compare(list(rows(model, prompt, sampling)), args.rounds, args.clock),
            ]
            print("\n".join(table), flush=True)
            lines += ["", *table]
    if args.keep:
        RESULTS.write_text("# Guesses from earlier n-grams\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
