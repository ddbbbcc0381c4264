"""A server under load: 64 streams that join, leave and cancel; and ten times as many requests as it can take.

    python benchmarks/serving_load.py [--seconds 600] [--streams 64] [--shape 0.8M] [--engine native]

The first part lets so many clients ask for texts of random lengths without a pause; every fourth text is cancelled
on its way. Every text, and the beginning of every cancelled one, is compared byte for byte with the text that the
library writes alone. Printed are the times to the first piece and between two pieces, and the resident memory of the
server every tenth of the time. In the second part requests come at random moments, ten times as many per second as
were served in the first: how long a refusal takes, and whether everybody who was not refused is served to the end.
"""

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from served_run import Client, run_client, served

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.inference import Engine, generate
from clearhead.models import CausalLM
from clearhead.workflows.runs.folder import RunFolder

POOL = 64  # different requests
LONGEST = {"0.8M": 200, "124M": 32}  # new tokens


@dataclass
class Figures:
    """What was measured, in seconds."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    texts: int = 0
    cancelled: int = 0
    tokens: int = 0
    wrong: int = 0


@dataclass(frozen=True)
class Pool:
    """Requests, and the texts that they have alone."""

    bodies: Sequence[dict[str, object]]
    texts: Sequence[str]


def pool_of(run: RunFolder, shape: str, engine: str) -> Pool:
    """Prompts of any length up to half of the block, seeds, and what the library writes by itself."""
    draw, model, tokenizer = random.Random(0), run.model(), run.tokenizer
    assert isinstance(model, CausalLM)
    own = Engine(model, EngineConfig.read({"engine": engine}))
    bodies, texts = list[dict[str, object]](), list[str]()
    for seed in range(POOL):
        prompt = tokenizer.decode([draw.randrange(model.config.vocab_size) for _ in range(draw.randint(1, 250))])
        tokens = draw.randint(1, LONGEST[shape])
        bodies.append({"prompt": prompt, "seed": seed, "max_tokens": tokens})
        config = SamplingConfig(seed=seed, temperature=1.0, max_new_tokens=tokens)
        texts += generate(model, tokenizer, [prompt], config, engine=own)[0]
    return Pool(bodies, texts)


async def client_loop(client: Client, pool: Pool, figures: Figures, end: float, seed: int) -> None:
    """Ask for one text after the other."""
    draw = random.Random(seed)
    while time.perf_counter() < end:
        number = draw.randrange(POOL)
        expected, leaves = pool.texts[number], draw.random() < 0.25
        limit = draw.randint(1, max(1, len(expected))) if leaves else len(expected) + 1
        start_time, text = time.perf_counter(), ""
        last = start_time
        pieces = client.stream(pool.bodies[number])
        async for now, piece in pieces:
            (figures.between if text else figures.first).append(now - last)
            last, text = now, text + piece
            if len(text) >= limit:
                break
        await pieces.aclose()  # type: ignore[attr-defined]
        figures.cancelled += leaves
        figures.texts += not leaves
        figures.tokens += len(text)
        figures.wrong += not expected.startswith(text) if leaves else text != expected


async def storm(client: Client, pool: Pool, streams: int, seconds: float) -> float:
    """The first part; texts per second."""
    figures, start_time = Figures(), time.perf_counter()
    before = await client.get("/spent")
    tasks = [
        asyncio.ensure_future(client_loop(client, pool, figures, start_time + seconds, seed)) for seed in range(streams)
    ]
    resident = list[int]()
    for part in range(10):
        await asyncio.sleep(max(0.0, start_time + (part + 1) * seconds / 10 - time.perf_counter()))
        resident.append((await client.get("/spent"))["resident"] >> 20)
    await asyncio.gather(*tasks)
    taken = time.perf_counter() - start_time
    after = await client.get("/spent")
    print(f"{streams} streams, {taken:.0f} s: {figures.texts:,} texts and {figures.cancelled:,} that were cancelled")
    print(f"not what they are alone: {figures.wrong}")
    print(f"tokens per second: {figures.tokens / taken:,.0f}")
    print(f"first piece: {percentiles(figures.first)}; between pieces: {percentiles(figures.between)}")
    print(f"resident MiB, every tenth of the time: {', '.join(map(str, resident))}")
    print(f"time outside of the model: {1 - (after['model'] - before['model']) / taken:.0%}")
    return (figures.texts + figures.cancelled) / taken


async def overload(client: Client, pool: Pool, rate: float, seconds: float) -> None:
    """The second part: so many requests per second."""
    refused, served_texts, firsts = list[float](), list[bool](), list[float]()

    async def ask(number: int) -> None:
        start_time, text = time.perf_counter(), ""
        try:
            async for now, piece in client.stream(pool.bodies[number % POOL]):
                if not text:
                    firsts.append(now - start_time)
                text += piece
        except RuntimeError as error:
            if str(error) != "429":
                raise
            refused.append(time.perf_counter() - start_time)
            return
        served_texts.append(text == pool.texts[number % POOL])

    tasks, draw, arrival = list[asyncio.Task[None]](), random.Random(1), time.perf_counter()
    before = await client.get("/spent")
    end = arrival + seconds
    while arrival < end:
        arrival += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, arrival - time.perf_counter()))
        tasks.append(asyncio.ensure_future(ask(len(tasks))))
    await asyncio.gather(*tasks)
    after = await client.get("/spent")
    processor, model = (after[name] - before[name] for name in ("process", "model"))
    print(f"the server's processor: {processor:.1f} s; in the model: {model:.1f} s")
    print(f"{len(tasks):,} requests in {seconds:g} s, {rate:.0f} per second: {len(served_texts)} were served")
    print(f"not what they are alone, or cut off: {served_texts.count(False)}")
    print(f"refused: {len(refused)}, after {percentiles(refused)}")
    print(f"first piece of the others: {percentiles(firsts)}")


def percentiles(seconds: Sequence[float]) -> str:
    """The median, the 99th percentile, the most."""
    if len(seconds) < 2:
        return "too few"
    hundred = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"p50 {hundred[49] * 1e3:.1f} ms, p99 {hundred[98] * 1e3:.1f} ms, most {max(seconds) * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--shape", choices=LONGEST, default="0.8M")
    parser.add_argument("--engine", choices=("eager", "native"), default="native")
    parser.add_argument("--threads", type=int, default=0, help="the server's; 0: as many as torch chooses")
    args = parser.parse_args()
    waiting = max(args.streams, 2 * args.slots)
    options = {"engine": args.engine, "slots": args.slots, "queue_length": waiting, "max_connections": 4096}
    print(f"load average {os.getloadavg()[0]:.1f}")
    with served(args.shape, args.threads, **options) as (client, run):
        pool = pool_of(run, args.shape, args.engine)
        run_client(client.post("/v1/completions", pool.bodies[0]))  # which loads the run
        rate = run_client(storm(client, pool, args.streams, args.seconds))
        run_client(overload(client, pool, 10 * rate, min(10.0, args.seconds)))
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
