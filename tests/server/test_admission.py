"""What there is no room for is refused before it is read, and nothing else is."""

import asyncio
import threading
from functools import partial
from typing import cast

import pytest
from run_folders import write_run
from starlette.types import Message, Scope

from clearhead.config import SamplingConfig
from clearhead.config.serving import ServerConfig
from clearhead.server import create_app
from clearhead.server.loaded_runs import LoadedRuns
from clearhead.server.text_batch import TextRequest
from clearhead.workflows.runs.folder import RunFolder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    return [write_run(tmp_path_factory.mktemp("runs") / name, block_size=256) for name in ("a", "b")]


def scope_of(path: str, host: bytes = b"localhost") -> Scope:
    headers = [(b"host", host), (b"content-type", b"application/json")]
    return {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "state": {}}


def test_where_every_queue_is_full_nothing_is_read_of_a_request_for_texts(folders: list[RunFolder]) -> None:
    async def main() -> None:
        app = create_app(folders, ServerConfig(slots=1, queue_length=1, engine="eager"))
        runs = cast(LoadedRuns, app.state.runs)

        async def status(path: str, host: bytes = b"localhost") -> int:
            """Of a request whose body never comes."""
            sent = list[Message]()

            async def send(message: Message) -> None:
                sent.append(message)

            async def receive() -> Message:
                raise TimeoutError("somebody waits for the body")

            await app(scope_of(path, host), receive, send)
            if sent[0]["status"] == 429:
                assert (b"retry-after", b"1") in sent[0]["headers"]
                assert b"rate_limit_error" in sent[1]["body"]
            return cast(int, sent[0]["status"])

        texts = TextRequest([[1, 2]] * 2, SamplingConfig(max_new_tokens=200))
        released = threading.Event()  # until then no text comes to its end
        async with runs.use("a") as first:
            first.thread.post(partial(released.wait, 60))
            with first.queue().submit(texts):
                assert runs.refusal() is None, "the other run is not even loaded"
                async with runs.use("b") as second:
                    second.thread.post(partial(released.wait, 60))
                    assert await status("/v1/completions") == 408, "it has room"
                    with second.queue().submit(texts):
                        assert await status("/v1/completions") == 429
                        assert await status("/v1/chat/completions") == 429
                        assert await status("/v1/completions", b"example.com") == 403, "who may not ask hears that"
                        assert await status("/tokenize") == 408, "other requests are read"
                        assert ("/v1/completions", 429) in app.state.metrics.requests
                    assert runs.refusal() is None
                    released.set()
        await runs.close(20)

    asyncio.run(asyncio.wait_for(main(), 100))


def test_closing_waits_for_the_step_of_a_model_and_not_as_long_as_the_texts_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = list[float]()

    async def close(self: LoadedRuns, seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(LoadedRuns, "close", close)

    async def main() -> None:
        for seconds in (0.5, 60):
            app = create_app([], ServerConfig(shutdown_seconds=seconds))
            async with app.router.lifespan_context(app):
                pass

    asyncio.run(main())
    assert waits == [0.5, 1.0], "uvicorn has waited before"


def test_no_run_is_no_full_queue() -> None:
    assert LoadedRuns([], ServerConfig()).refusal() is None
