"""Streams: what is sent, what an error becomes, and what happens when a client goes or does not read."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Message

from clearhead.server.http.errors import EXCEPTION_HANDLERS, HttpError
from clearhead.server.http.events import event_stream, while_connected

TRICKY = 'a\n\n\r\u2028\u0085"data: [DONE]"é😀\ud800'


async def events(kind: str) -> AsyncGenerator[dict[str, object], None]:
    if kind == "busy":
        raise HttpError(429, "full", retry_after=1)
    if kind == "none":
        return
    yield {"text": TRICKY}
    yield {"text": "second"}
    if kind == "late":
        raise ZeroDivisionError("/home/somebody")


async def stream(request: Request) -> Response:
    kind = request.path_params["kind"]
    return event_stream(request, events(kind), done=kind != "bare")


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=[Route("/{kind}", stream)], exception_handlers=EXCEPTION_HANDLERS))


def data_of(text: str) -> list[str]:
    assert text.isascii()
    assert text.endswith("\n\n")
    lines = text.split("\n\n")[:-1]
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


def test_events_are_lines_of_json_and_done_comes_last(client: TestClient) -> None:
    response = client.get("/whole")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    first, second, last = data_of(response.text)
    assert json.loads(first) == {"text": TRICKY}
    assert json.loads(second) == {"text": "second"}
    assert last == "[DONE]"
    assert data_of(client.get("/none").text) == ["[DONE]"]
    assert len(data_of(client.get("/bare").text)) == 2


def test_an_error_before_the_first_event_has_its_own_status(client: TestClient) -> None:
    response = client.get("/busy")
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    assert response.json()["error"]["message"] == "full"


def test_an_error_after_it_is_the_last_event(client: TestClient) -> None:
    response = client.get("/late")
    *_, last = data_of(response.text)
    assert response.status_code == 200
    assert json.loads(last)["error"]["type"] == "server_error"
    assert "somebody" not in response.text


class Connection:
    """The two ends of a connection, without a socket."""

    def __init__(self, *, reads: int | None = None) -> None:
        self.sent: list[Message] = []
        self.is_gone = False
        self.reads = reads

    async def receive(self) -> Message:
        while not self.is_gone:
            await anyio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.reads is not None and len(self.sent) >= self.reads:
            await anyio.sleep_forever()
        self.sent.append(message)

    def request(self) -> Request:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "asgi": {"spec_version": "2.3"}}
        return Request(scope, self.receive, self.send)


@asynccontextmanager
async def limited() -> AsyncIterator[None]:
    with anyio.fail_after(20):
        yield


class Endless:
    """Events without an end, which know how many were taken and whether they were closed."""

    def __init__(self) -> None:
        self.taken, self.closed = 0, False
        self.waits_at: int | None = None

    async def __call__(self) -> AsyncGenerator[dict[str, object], None]:
        try:
            while True:
                if self.taken == self.waits_at:
                    await anyio.sleep_forever()
                self.taken += 1
                yield {"number": self.taken}
        finally:
            self.closed = True


@pytest.mark.parametrize(("reads", "waits_at"), [(3, None), (None, 3), (None, 0)])
def test_a_client_that_goes_closes_the_events_where_they_are(reads: int | None, waits_at: int | None) -> None:
    """While an event is sent that nobody reads; while the next one is waited for; before the first."""

    async def main() -> None:
        source, connection = Endless(), Connection(reads=reads)
        source.waits_at = waits_at
        request = connection.request()
        async with limited(), anyio.create_task_group() as tasks:
            response = event_stream(request, source())
            tasks.start_soon(response, request.scope, request.receive, connection.send)
            await anyio.wait_all_tasks_blocked()
            assert not source.closed
            assert source.taken <= 3
            connection.is_gone = True
        assert source.closed

    anyio.run(main)


def test_events_that_never_wait_hold_up_nobody_and_end_with_the_client() -> None:
    async def main() -> None:
        source, connection = Endless(), Connection(reads=None)
        request = connection.request()
        async with limited(), anyio.create_task_group() as tasks:
            tasks.start_soon(event_stream(request, source()), request.scope, request.receive, connection.send)
            await anyio.sleep(0.05)  # it comes back
            assert source.taken > 0
            connection.is_gone = True
        assert source.closed

    anyio.run(main)


def test_work_is_cancelled_when_the_client_goes() -> None:
    async def main() -> None:
        connection, ended = Connection(), []

        async def work() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(True)

        async with limited(), anyio.create_task_group() as tasks:

            async def asks() -> None:
                with pytest.raises(ClientDisconnect):
                    await while_connected(connection.request(), work())

            tasks.start_soon(asks)
            await anyio.wait_all_tasks_blocked()
            connection.is_gone = True
        assert ended == [True]

    anyio.run(main)


def test_work_that_ends_is_returned_and_its_error_raised() -> None:
    async def main() -> None:
        async def work(value: int) -> int:
            await anyio.sleep(0)
            if value < 0:
                raise HttpError(400, "negative")
            return value

        async with limited():
            assert await while_connected(Connection().request(), work(3)) == 3
            with pytest.raises(HttpError, match="negative"):
                await while_connected(Connection().request(), work(-1))

    anyio.run(main)


def test_work_is_cancelled_with_the_request_itself() -> None:
    async def main() -> None:
        ended = []

        async def work() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(True)

        async with limited():
            with anyio.move_on_after(0.05):
                await while_connected(Connection().request(), work())
        assert ended == [True]

    anyio.run(main)
