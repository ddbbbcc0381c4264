"""Connections that are slow, silent, too many or do not read: each is closed, and the others are served."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack

import pytest
from http_connections import PATIENCE, ask, connect, serving, until_closed
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from clearhead.config.serving import ServerConfig
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import EXCEPTION_HANDLERS
from clearhead.server.http.events import event_stream
from clearhead.server.http.guard import Guard

SHORT = ServerConfig(receive_seconds=0.5, idle_seconds=0.5, send_seconds=0.5, shutdown_seconds=0.5, max_connections=900)
HEAD = b"POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n"


class Body(RequestBody):
    a: int


async def healthz(request: Request) -> Response:
    return PlainTextResponse("fine")


async def body(request: Request) -> Response:
    return JSONResponse({"a": (await read_body(request, Body)).a})


async def unread(request: Request) -> Response:
    return PlainTextResponse("never mind")


async def large(request: Request) -> Response:
    return PlainTextResponse("x" * 30_000_000)


streams_closed = threading.Event()


async def endless(request: Request) -> Response:
    async def events() -> AsyncGenerator[dict[str, object], None]:
        try:
            while True:
                yield {"text": "x" * 10_000}
                await asyncio.sleep(0)
        finally:
            streams_closed.set()

    return event_stream(request, events())


def app_of(config: ServerConfig) -> Guard:
    routes = [
        Route("/healthz", healthz),
        Route("/body", body, methods=["POST"]),
        Route("/unread", unread, methods=["POST"]),
        Route("/large", large),
        Route("/endless", endless),
    ]
    app = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)
    app.state.config = config
    return Guard(app, config)


@pytest.fixture(scope="module", params=["auto", "asyncio"])  # Windows has only the second
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with serving(app_of(SHORT), SHORT, request.param) as port:
        yield port


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, content = answer.partition(b"\r\n\r\n")
    assert b"content-security-policy" in head.lower()
    return int(head.split()[1]), json.loads(content)["error"]["message"]


def slow_connections(port: int, number: int, stack: ExitStack) -> None:
    """A third says nothing, a third begins a head, a third sends a head and no body; all are closed at the end."""
    connections = [stack.enter_context(connect(port)) for _ in range(number)]
    beginnings = (b"", HEAD[:30], HEAD + b'{"a"')
    for index, connection in enumerate(connections):
        connection.sendall(beginnings[index % 3])
    assert ask(port).endswith(b"fine")
    for index, connection in enumerate(connections):
        answer = until_closed(connection)
        if index % 3 == 0:
            assert answer == b""
        else:
            assert error_of(answer) == (408, "the whole request did not arrive within 0.5 seconds")
    assert ask(port).endswith(b"fine")


def test_slow_and_silent_connections_are_closed_while_others_are_served(port: int) -> None:
    with ExitStack() as stack:
        slow_connections(port, 99, stack)


@pytest.mark.campaign
def test_so_are_five_hundred(port: int) -> None:
    with ExitStack() as stack:
        slow_connections(port, 501, stack)


@pytest.mark.parametrize("content", [HEAD, HEAD + b'{"a":1}'])
def test_a_byte_now_and_then_keeps_no_connection(port: int, content: bytes) -> None:
    """The deadline is for the whole request: what trickles in does not move it."""
    pause = threading.Event()
    with connect(port) as connection:
        for byte in content:
            try:
                connection.sendall(bytes([byte]))
            except ConnectionError:
                break
            pause.wait(0.02)
        else:
            assert error_of(until_closed(connection))[0] == 408


def test_a_request_whose_body_nobody_reads_is_closed_too(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(HEAD.replace(b"/body", b"/unread"))
        assert b"never mind" in until_closed(connection)


def test_a_connection_serves_several_requests_and_is_closed_when_idle(port: int) -> None:
    with connect(port) as connection:
        for number in range(3):
            connection.sendall(HEAD + f'{{"a":{number}}}'.encode())
            answer = connection.recv(1 << 16)
            while not answer.endswith(b"}"):
                answer += connection.recv(1 << 16)
            assert answer.endswith(f'{{"a":{number}}}'.encode())
        assert until_closed(connection) == b""


def test_requests_that_come_together_are_answered_in_order(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(HEAD + b'{"a":1}' + HEAD + b'{"a":2}' + HEAD[:20])
        answer = until_closed(connection)
    assert answer.count(b"HTTP/1.1 ") == 3
    assert answer.index(b'{"a":2}') < answer.index(b"408")


@pytest.mark.parametrize("path", ["/large", "/endless"])
def test_a_client_that_does_not_read_is_closed(port: int, path: str) -> None:
    streams_closed.clear()
    with connect(port) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        if path == "/endless":
            assert streams_closed.wait(PATIENCE)
        else:
            threading.Event().wait(1.5)  # three times the deadline
        assert len(until_closed(connection)) < 30_000_000
    assert ask(port).endswith(b"fine")


def test_a_large_answer_that_is_read_comes_whole(port: int) -> None:
    assert ask(port, "/large").count(b"x") >= 30_000_000


@pytest.mark.parametrize("size", [20_000, 200_000, 2_000_000])
def test_a_large_head_is_refused(port: int, size: int) -> None:
    with connect(port) as connection:
        try:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * size + b"\r\n\r\n")
        except ConnectionError:
            return
        answer = until_closed(connection)
    assert not answer or error_of(answer) == (431, "the request's head is too large")


@pytest.mark.parametrize(
    "content", [b"\r\n\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_request_gets_the_envelope(port: int, content: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(content)
        status, message = error_of(until_closed(connection))
    assert status in (400, 408)
    assert "request" in message


def test_connections_beyond_the_limit_are_refused_until_others_end() -> None:
    config = SHORT.model_copy(update={"max_connections": 3})
    with serving(app_of(config), config) as port, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(port)).sendall(HEAD)
        status, message = error_of(ask(port))
        assert (status, "connections" in message) == (503, True)
        stack.close()
        answers = (ask(port) for _ in range(100))
        assert any(answer.endswith(b"fine") for answer in answers)
