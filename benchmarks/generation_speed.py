"""The next token: Hugging Face's `generate` beside the engines, with the same weights, interleaved in one process.

    python benchmarks/generation_speed.py [--rounds 5] [--shapes 0.8M 124M] [--streams 1 16 64] [--device cuda] [--keep]

Both sides read the same prompts of 16 tokens and write greedily. A table for each shape and number of streams: tokens
per second of all streams together (median, lowest and highest of the rounds), the ratio to Hugging Face's, and, for a
single stream, what share of the memory's speed was reached: a row of the same run reads as many bytes as a token's
weights have, and does nothing else. One stream of the small shape is computed on one thread, by both; all else on as
many as torch chooses. Before a table is measured, what the engines write is compared with what Hugging Face writes.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for both sides: a busy neighbor then costs little

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from side_by_side import Row, Work, arguments, machine, measure, spread

from clearhead import interop
from clearhead.cli.environment import prepare_process
from clearhead.config import EngineConfig, ModelConfig, SamplingConfig
from clearhead.inference import Engine, stream_ids
from clearhead.models import CausalLM, build_model
from clearhead.workflows.hardware import threads

GPT2: dict[str, Any] = {"bias": True, "feedforward": "gelu_tanh", "positions": "learned"}
SHAPES: dict[str, dict[str, Any]] = {
    "0.8M": {"vocab_size": 65, "block_size": 512, "n_layers": 4, "n_heads": 4, "d_model": 128},
    "124M": {"vocab_size": 50257, "block_size": 1024, "n_layers": 12, "n_heads": 12, "d_model": 768},
}
NEW_TOKENS = {"0.8M": 256, "124M": 32}
PROMPT = 16  # tokens
WIDTHS = {"float32": 4, "bfloat16": 2, "int8": 1}  # bytes of a weight
RESULTS = Path(__file__).parent / "results" / "generation_speed.md"


class Writing:
    """One shape and number of streams: the programs that write, and what they wrote."""

    def __init__(self, shape: str, streams: int, device: str = "cpu") -> None:
        self.shape, self.streams, self.new_tokens = shape, streams, NEW_TOKENS[shape]
        self.device = torch.device(device)
        model = build_model(ModelConfig.read(SHAPES[shape], GPT2)).eval().to(self.device)
        assert isinstance(model, CausalLM)
        self.model = model
        self.size = sum(parameter.numel() for parameter in model.parameters())
        self.hugging_face = as_hugging_face(model).to(self.device)
        draw = torch.Generator().manual_seed(1)
        self.prompts = torch.randint(model.config.vocab_size, (streams, PROMPT), generator=draw).to(self.device)
        self.threads = 1 if streams == 1 and shape == "0.8M" else torch.get_num_threads()
        self.written: dict[str, list[list[int]]] = {}
        self.engines = {
            how: Engine(model, EngineConfig.read({"engine": how[0], "dtype": how[1]})) for how in self._engines()
        }

    def rows(self) -> Iterator[Row]:
        """What is measured, Hugging Face first."""
        yield Row("Hugging Face generate", "float32", self._on_threads(self._hugging_face))
        for engine, weights in self.engines:
            yield Row(engine, weights, self._on_threads(lambda e=engine, w=weights: self._ours(e, w)))  # type: ignore[misc]
        if self.streams == 1:
            for weights in dict.fromkeys(weights for _, weights in self.engines):
                yield Row("reading the weights", weights, self._on_threads(self._reading(WIDTHS[weights])))

    def _engines(self) -> Iterator[tuple[str, str]]:
        yield ("eager", "float32")
        if self.device.type != "cpu":  # the native engine is for a CPU
            return
        yield ("native", "float32")
        if self.streams == 1 and self.shape != "0.8M":
            yield from (("native", "bfloat16"), ("native", "int8"))

    def _on_threads(self, work: Work) -> Work:
        def bound() -> float:
            with threads(self.threads):
                return work()

        return bound

    def _hugging_face(self) -> float:
        with torch.inference_mode():
            texts = self.hugging_face.generate(
                self.prompts,
                attention_mask=torch.ones_like(self.prompts),
                max_new_tokens=self.new_tokens,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=None,
            )
        self.written["Hugging Face"] = texts[:, PROMPT:].tolist()
        return self.streams * self.new_tokens

    def _ours(self, engine: str, weights: str) -> float:
        sampling = SamplingConfig(max_new_tokens=self.new_tokens, greedy=True)
        kept = self.engines[engine, weights]
        columns = stream_ids(self.model, self.prompts.tolist(), sampling, engine=kept, on_notice=print)
        texts = zip(*(column.values() for column in columns), strict=True)
        self.written[f"{engine}, {weights}"] = [list(text) for text in texts]
        return self.streams * self.new_tokens

    def _reading(self, width: int) -> Work:
        numbers = torch.ones(self.size * width // 4, device=self.device)

        def read() -> float:
            for _ in range(self.new_tokens):
                total = numbers.sum()
            total.item()  # a GPU is waited for
            return self.new_tokens

        return read

    def table(self, rounds: int, clock: str) -> list[str]:
        """The lines of the table, and a line on what was written."""
        rows = list(self.rows())
        measured = measure(rows, rounds, clock)
        medians = {(row.name, row.remark): statistics.median(rates) for row, rates in zip(rows, measured, strict=True)}
        first = medians[rows[0].name, rows[0].remark]
        what = f"{self.shape}, streams: {self.streams}, threads: {self.threads}"
        lines = [f"| {what} | weights | tokens per second | ratio | share of memory's speed |", "|---|---|---|---|---|"]
        for row, rates in zip(rows, measured, strict=True):
            median = medians[row.name, row.remark]
            floor = medians.get(("reading the weights", row.remark))
            share = f"{median / floor:.0%}" if floor else ""
            lines.append(f"| {row.name} | {row.remark} | {spread(rates)} | {median / first:.2f} | {share} |")
        return [*lines, "", self._compared()]

    def _compared(self) -> str:
        eager = self.written["eager, float32"]
        assert self.written.get("native, float32", eager) == eager, "the engines write different texts"
        first, *others = (torch.tensor(texts) for texts in self.written.values())
        shares = [(other == first).float().mean().item() for other in others]
        equal = [f"{name} {share:.1%}" for name, share in zip(list(self.written)[1:], shares, strict=True)]
        return f"Tokens equal to Hugging Face's: {', '.join(equal)}."


def as_hugging_face(model: CausalLM) -> Any:
    """The same weights as transformers opens them."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        interop.save(Path(folder), model)
        hugging_face: Any = AutoModelForCausalLM.from_pretrained(folder)
        return hugging_face.eval()


def main() -> None:
    parser = arguments(__doc__, 5, RESULTS)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    prepare_process()  # the allocator, for both sides
    written = " and ".join(f"{tokens} new tokens ({shape})" for shape, tokens in NEW_TOKENS.items())
    lines = [f"{machine()}, {args.clock} clock, {args.rounds} rounds, interleaved; {written}."]
    for shape in args.shapes:
        for streams in args.streams if shape == "0.8M" else [1]:
            table = Writing(shape, streams, args.device).table(args.rounds, args.clock)
            print("\n".join(table), flush=True)
            lines += ["", *table]
    if args.keep:
        RESULTS.write_text("# How fast a text is written\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
