"""Tokens per second through the server, beside our own batch in process and transformers' three ways; interleaved.

    python benchmarks/serving_speed.py [--rounds 5] [--shapes 0.8M 124M] [--streams 1 16 64] [--threads N] [--keep]

All sides have the same weights, read prompts of 16 tokens and write as many tokens; all draw at temperature 1. A row
of the server is that many streams at once, each read to its end by a client in another process on the same processors,
whose time counts in the tokens per second. `GenerationBatch`, `generate` and transformers' continuous batching
(`generate_batch`, without the time to set it up, and for an eighth of the tokens) are called by this process with all
prompts at once and write ids, no text. `transformers serve` is there where `transformers[serving]` is installed: it is
asked by the same client for whole texts, not for streams, and writes one text after the other, which is its default.
Beside a busy neighbor the processor's microseconds per token, of the server
alone in its row, tell more than the clock on the wall. The last column is the share of the time in which the server did
not compute the model.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for all sides: a busy neighbor then costs little

import argparse
import asyncio
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from generation_speed import NEW_TOKENS, PROMPT, SHAPES, as_hugging_face
from served_run import Client, run_client, served, served_by_transformers
from side_by_side import machine, spread

from clearhead.cli.environment import prepare_process
from clearhead.config import EngineConfig, SamplingConfig
from clearhead.config.serving import ServerConfig
from clearhead.inference import Engine, GenerationBatch
from clearhead.models import CausalLM
from clearhead.workflows.runs.folder import RunFolder

RESULTS = Path(__file__).parent / "results" / "serving_speed.md"
ENGINE = EngineConfig(engine="native")
HUGGING_FACE, OWN_BATCH = "Hugging Face generate, in process", "GenerationBatch, in process"
PAGE, CONTINUOUS = 32, 8  # of continuous batching: tokens of a page; it writes a part of the others' tokens, being slow


class Figures(NamedTuple):
    """What a round of a row took."""

    tokens: int
    seconds: float
    processor: float
    model: float = 0.0  # seconds in the model, of the server


class Serving:
    """One shape and number of streams: the programs that write.

    Args:
        peer: a client of `transformers serve`, if that is measured.
        hugging_face: the same model as transformers opens it, if that is measured.
    """

    def __init__(
        self, client: Client, peer: Client | None, run: RunFolder, shape: str, streams: int, hugging_face: Any
    ) -> None:
        self.client, self.shape, self.streams, self.new_tokens = client, shape, streams, NEW_TOKENS[shape]
        model = run.model()
        assert isinstance(model, CausalLM)
        self.engine, self.hugging_face, self.peer = Engine(model, ENGINE), hugging_face, peer
        self.tokenizer = run.tokenizer
        draw = torch.Generator().manual_seed(1)
        self.prompts = torch.randint(model.config.vocab_size, (streams, PROMPT), generator=draw)

    def rows(self) -> dict[str, Callable[[], Figures]]:
        """What is measured, Hugging Face first."""
        others: dict[str, Callable[[], Figures]] = {
            HUGGING_FACE: lambda: timed(self._hugging_face),
            "transformers' continuous batching, in process": self._continuous,
        }
        if self.peer is not None:
            others["transformers serve, HTTP"] = lambda: run_client(self._peer())
        return ({} if self.hugging_face is None else others) | {
            OWN_BATCH: lambda: timed(self._batch),
            "clearhead's server, HTTP streams": self._server,
        }

    def _hugging_face(self) -> int:
        with torch.inference_mode():
            self.hugging_face.generate(
                self.prompts,
                attention_mask=torch.ones_like(self.prompts),
                max_new_tokens=self.new_tokens,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
                eos_token_id=None,
            )
        return self.streams * self.new_tokens

    def _continuous(self) -> Figures:
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        processor, new_tokens = time.process_time(), self.new_tokens // CONTINUOUS
        pages = self.streams * -(-(PROMPT + new_tokens) // PAGE) + 8
        results = self.hugging_face.generate_batch(
            inputs=self.prompts.tolist(),
            generation_config=GenerationConfig(  # type: ignore[no-untyped-call]
                max_new_tokens=new_tokens, do_sample=True, top_k=0, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE, num_blocks=pages, max_batch_tokens=max(512, self.streams * PROMPT)
            ),
            record_timestamps=True,
            warmup=False,
        )
        processor = time.process_time() - processor
        outputs = [*results.values()]
        assert [len(output.generated_tokens) for output in outputs] == [new_tokens] * self.streams
        start_time = min(output.created_time for output in outputs)
        seconds = max(output.timestamps[-1] for output in outputs) - start_time
        return Figures(self.streams * new_tokens, seconds, processor)

    def _batch(self) -> int:
        config = SamplingConfig(max_new_tokens=self.new_tokens, temperature=1.0, seed=1)
        written = 0
        with GenerationBatch(self.engine.source, self.engine, slots=self.streams) as batch:
            batch.add(self.prompts.tolist(), config)
            while batch.live:
                written += sum(map(len, batch.step().values()))
        assert written == self.streams * self.new_tokens
        return written

    async def _peer(self) -> Figures:
        assert self.peer is not None
        sampling = json.dumps({"do_sample": True, "top_k": 0})  # it has no other way to say so
        texts = [self.tokenizer.decode(prompt) for prompt in self.prompts.tolist()]
        bodies = [{"prompt": text, "max_tokens": self.new_tokens, "generation_config": sampling} for text in texts]
        start_time = time.perf_counter()
        answers = await asyncio.gather(*(self.peer.post("/v1/completions", body) for body in bodies))
        seconds = time.perf_counter() - start_time
        usages = {tuple(answer["usage"][f"{part}_tokens"] for part in ("prompt", "completion")) for answer in answers}
        assert usages == {(PROMPT, self.new_tokens)}, usages
        return Figures(self.streams * self.new_tokens, seconds, float("nan"))

    def _server(self) -> Figures:
        return run_client(self._streams())

    async def _streams(self) -> Figures:
        async def read(prompt: Sequence[int]) -> int:
            body = {"prompt": prompt, "max_tokens": self.new_tokens, "seed": 1}
            return sum([len(piece) async for _, piece in self.client.stream(body)])

        before, start_time = await self.client.get("/spent"), time.perf_counter()
        lengths = await asyncio.gather(*map(read, self.prompts.tolist()))
        seconds, after = time.perf_counter() - start_time, await self.client.get("/spent")
        assert sum(lengths) == self.streams * self.new_tokens, lengths
        return Figures(sum(lengths), seconds, after["process"] - before["process"], after["model"] - before["model"])

    def table(self, rounds: int) -> list[str]:
        """The lines of the table."""
        rows = self.rows()
        for work in rows.values():
            work()  # warm up
        figures: dict[str, list[Figures]] = {name: [] for name in rows}
        for done in range(rounds):
            print(f"round {done + 1} of {rounds}", file=sys.stderr)
            for name, work in rows.items():
                figures[name].append(work())
        rates = {name: [own.tokens / own.seconds for own in several] for name, several in figures.items()}
        costs = {name: [1e6 * own.processor / own.tokens for own in several] for name, several in figures.items()}
        what = f"{self.shape}, streams: {self.streams}, threads: {torch.get_num_threads()}"
        lines = [
            f"| {what} | tokens per second | to Hugging Face | to GenerationBatch | processor, µs per token | "
            "to GenerationBatch | outside of the model |",
            "|---|---|---|---|---|---|---|",
        ]
        offline, cost = statistics.median(rates[OWN_BATCH]), statistics.median(costs[OWN_BATCH])
        others = statistics.median(rates.get(HUGGING_FACE, [float("nan")]))
        for name in rows:
            median = statistics.median(rates[name])
            own_cost = statistics.median(costs[name])
            spent = " | " if math.isnan(own_cost) else f"{spread(costs[name])} | {own_cost / cost:.2f}"
            shares = [1 - share.model / share.seconds for share in figures[name] if share.model]
            outside = f"{statistics.median(shares):.0%}" if shares else ""
            lines.append(
                f"| {name} | {spread(rates[name])} | {median / others:.2f} | {median / offline:.2f} | "
                f"{spent} | {outside} |"
            )
        return lines


def timed(work: Callable[[], int]) -> Figures:
    """A round of what is done in this process."""
    start_time, processor = time.perf_counter(), time.process_time()
    tokens = work()
    return Figures(tokens, time.perf_counter() - start_time, time.process_time() - processor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help=f"write the tables into {RESULTS.name}")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--threads", type=int, default=0, help="of all sides; 0: as many as torch chooses")
    parser.add_argument("--own", action="store_true", help="only our own batch and the server")
    parser.add_argument(
        "--stream-milliseconds", type=int, default=ServerConfig().stream_milliseconds, help="the server's"
    )
    args = parser.parse_args()
    prepare_process()  # the allocator, for all sides
    if args.threads:
        torch.set_num_threads(args.threads)
    lines = [f"{machine()}, {args.rounds} rounds, interleaved."]
    print(f"load average {os.getloadavg()[0]:.1f}")
    for shape in args.shapes:
        options: dict[str, object] = {"engine": "native", "slots": max(args.streams), "queue_length": 64}
        options["stream_milliseconds"] = args.stream_milliseconds
        with ExitStack() as stack:
            client, run = stack.enter_context(served(shape, args.threads, **options))
            model = run.model()
            assert isinstance(model, CausalLM)
            hugging_face, peer = None if args.own else as_hugging_face(model), None
            if not args.own and find_spec("fastapi"):
                peer = stack.enter_context(served_by_transformers(run, args.threads))
            for streams in args.streams:
                table = Serving(client, peer, run, shape, streams, hugging_face).table(args.rounds)
                table += ["", f"Load average after it: {os.getloadavg()[0]:.1f}."]
                print("\n".join(table), flush=True)
                lines += ["", *table]
    if args.keep:
        RESULTS.write_text("# Tokens per second through the server\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
