"""64 streams over a real connection that join, leave and cancel; more requests than there is room for."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from run_folders import write_run
from running_server import running

from clearhead.config import EngineConfig, SamplingConfig
from clearhead.config.serving import ServerConfig
from clearhead.inference import Engine, generate
from clearhead.models import CausalLM
from clearhead.native import compiler
from clearhead.workflows.runs.folder import RunFolder

STREAMS, REQUESTS, PATIENCE = 64, 40, 60
NEEDS_COMPILER = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
pytestmark = pytest.mark.usefixtures("compiled_code")
Pool = list[tuple[dict[str, object], str]]  # requests, and the texts that they have alone


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("runs") / "small", block_size=256)


@pytest.fixture(scope="module")
def pool(run: RunFolder, folder_of_compiled_code: Path) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLEARHEAD_CACHE", str(folder_of_compiled_code))
        yield pool_of(run)


def pool_of(run: RunFolder) -> Pool:
    draw, model, tokenizer = random.Random(0), run.model(), run.tokenizer
    assert isinstance(model, CausalLM)
    engine = Engine(model, EngineConfig(engine="native"))
    requests = Pool()
    for seed in range(REQUESTS):
        prompt = "".join(draw.choices("abcdefg hijk", k=draw.randint(1, 120)))
        length, stop = draw.randint(1, 120), draw.choice([[], ["ab"], ["z"]])
        config = SamplingConfig(seed=seed, temperature=1.0, max_new_tokens=length, stop=tuple(stop))
        [[text]] = generate(model, tokenizer, [prompt], config, engine=engine)
        requests.append(({"prompt": prompt, "seed": seed, "max_tokens": length, "stop": stop, "stream": True}, text))
    return requests


async def pieces(client: httpx2.AsyncClient, body: dict[str, object]) -> AsyncIterator[str]:
    """The pieces of a completion."""
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return
            if line:
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                yield event["choices"][0]["text"]


async def one_client(client: httpx2.AsyncClient, pool: Pool, end: float, seed: int) -> int:
    """Asks for one text after the other, and leaves some of them; how many it has read whole."""
    draw, whole = random.Random(seed), 0
    while time.monotonic() < end:
        body, expected = draw.choice(pool)
        limit = draw.randint(0, len(expected)) if draw.random() < 0.3 else None
        text = ""
        reading = pieces(client, body)
        async for piece in reading:
            text += piece
            assert expected.startswith(text)
            if limit is not None and len(text) >= limit:
                break
        await reading.aclose()  # type: ignore[attr-defined]
        if limit is None:
            assert text == expected
            whole += 1
    return whole


def resident() -> int:
    """Bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


@NEEDS_COMPILER
@pytest.mark.parametrize("seconds", [3.0, pytest.param(600.0, marks=[pytest.mark.campaign, pytest.mark.timeout(900)])])
def test_streams_that_join_leave_and_cancel_are_what_they_are_alone(run: RunFolder, pool: Pool, seconds: float) -> None:
    async def storm(address: str, seconds: float) -> int:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE, limits=limits) as client:
            end = time.monotonic() + seconds
            counts = await asyncio.gather(*(one_client(client, pool, end, seed) for seed in range(STREAMS)))
            async for _ in pieces(client, pool[0][0]):
                pass  # whoever left has left nothing behind that would be in the way
            return sum(counts)

    with running([run], ServerConfig(engine="native", slots=8, queue_length=STREAMS, prompt_tokens=1024)) as address:
        assert asyncio.run(storm(address, seconds / 3)) > STREAMS / 2
        if not Path("/proc/self/statm").exists():
            return
        before = resident()
        assert asyncio.run(storm(address, 2 * seconds / 3)) > STREAMS / 2
        assert resident() - before < 32 * 2**20, "nothing of a text stays"


@NEEDS_COMPILER
def test_ten_times_too_many_are_refused_and_who_was_let_in_is_served(run: RunFolder, pool: Pool) -> None:
    async def ask(client: httpx2.AsyncClient, body: dict[str, object], expected: str) -> int:
        answer = await client.post("/v1/completions", json={**body, "stream": False})
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["text"] == expected
        else:
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["type"] == "rate_limit_error"
        return answer.status_code

    async def main(address: str) -> list[int]:
        async with httpx2.AsyncClient(base_url=address, timeout=PATIENCE) as client:
            await ask(client, *pool[0])  # which loads the run
            return await asyncio.gather(*(ask(client, *request) for request in pool * 2))

    with running([run], ServerConfig(engine="native", slots=2, queue_length=2, prompt_tokens=1024)) as address:
        statuses = asyncio.run(main(address))
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 4
