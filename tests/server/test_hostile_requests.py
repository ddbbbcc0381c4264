"""Whatever is sent: an answer in the envelope, or the connection closed; no 5xx, no traceback, no path, no hang."""

import json
import random
import re
import socket
import time
from collections.abc import Iterator

import pytest
from http_connections import PATIENCE, serving
from run_folders import write_run
from starlette.routing import Route

from clearhead.config.serving import ServerConfig
from clearhead.server import app, create_app

CONFIG = ServerConfig(
    engine="eager", receive_seconds=2, idle_seconds=1, send_seconds=2, shutdown_seconds=2, max_tokens=16
)
POSTS = [route.path for route in app.ROUTES if isinstance(route, Route) and "POST" in (route.methods or ())]
GETS = ["/", "/healthz", "/metrics", "/v1/models", "/v1/models/writer", "/page/page.js", "/page/..%2f..%2fapp.py"]
LEAKS = re.compile(rb"Traceback|File \"|site-packages|/home/|/root/|/work/|/tmp/|\.py\b")
JSON = "Content-Type: application/json"

BODIES = {
    "no JSON": b"{",
    "nothing": b"",
    "a list": b"[1]",
    "a text": b'"a"',
    "null": b"null",
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "deep prompt": b'{"prompt":' + b"[" * 2000 + b"1" + b"]" * 2000 + b"}",
    "many digits": b'{"max_tokens": 1' + b"0" * 20_000 + b"}",
    "a huge exponent": b'{"temperature": 1e999999}',
    "not a number": b'{"temperature": NaN}',
    "infinity": b'{"temperature": -Infinity}',
    "bytes that are no UTF-8": b'{"prompt": "\xff\xfe"}',
    "half a surrogate pair": b'{"prompt": "\\ud800", "text": "\\udfff", "input": "\\ud800"}',
    "controls": b'{"prompt": "\\u0000\\u001b[2J"}',
    "a key twice": b'{"prompt": "a", "prompt": 3}',
    "a byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "unknown fields": b'{"__class__": 1, "constructor": {}}',
    "a path as a model": b'{"model": "../../etc/passwd", "prompt": "a", "text": "a", "input": "a", "tokens": [1]}',
    "wrong types": b'{"prompt": {"a": 1}, "text": 1, "tokens": "a", "input": true, "messages": "a"}',
    "a million of them": b'{"tokens": [' + b'"a",' * 200_000 + b"1]}",
    "negative ids": b'{"tokens": [-1], "prompt": [-1], "input": [-1]}',
    "huge ids": b'{"tokens": [9223372036854775808], "prompt": [9223372036854775807]}',
    "too large": b'{"prompt": "' + b"a" * (2**20) + b'"}',
}

HEADS = {
    "two lengths": "POST /v1/completions HTTP/1.1\nHost: localhost\nContent-Length: 3\nContent-Length: 4\n\nabc",
    "length and chunks": "POST /tokenize HTTP/1.1\nHost: localhost\nContent-Length: 3\n"
    "Transfer-Encoding: chunked\n\n0\n\n",
    "a negative length": "POST /tokenize HTTP/1.1\nHost: localhost\nContent-Length: -1\n\n",
    "a huge length": f"POST /tokenize HTTP/1.1\nHost: localhost\n{JSON}\nContent-Length: {10**19}\n\n",
    "no number as length": "POST /tokenize HTTP/1.1\nHost: localhost\nContent-Length: x\n\n",
    "a bad chunk": f"POST /tokenize HTTP/1.1\nHost: localhost\n{JSON}\nTransfer-Encoding: chunked\n\nxyz\nabc\n0\n\n",
    "a negative chunk": f"POST /tokenize HTTP/1.1\nHost: localhost\n{JSON}\nTransfer-Encoding: chunked\n\n-1\nabc\n",
    "a chunk without end": f"POST /tokenize HTTP/1.1\nHost: localhost\n{JSON}\nTransfer-Encoding: chunked\n\n5\nab",
    "an unknown coding": f"POST /tokenize HTTP/1.1\nHost: localhost\n{JSON}\nTransfer-Encoding: gzip\n\nabc",
    "two types": f"POST /tokenize HTTP/1.1\nHost: localhost\n{JSON}\n"
    "Content-Type: text/plain\nContent-Length: 2\n\n{}",
    "no type": "POST /tokenize HTTP/1.1\nHost: localhost\nContent-Length: 2\n\n{}",
    "a form": "POST /tokenize HTTP/1.1\nHost: localhost\nContent-Type: multipart/form-data\nContent-Length: 2\n\n{}",
    "compressed": f"POST /tokenize HTTP/1.1\nHost: localhost\n{JSON}\n"
    "Content-Encoding: gzip\nContent-Length: 2\n\n{}",
    "another charset": "POST /tokenize HTTP/1.1\nHost: localhost\n"
    "Content-Type: application/json; charset=utf-7\nContent-Length: 2\n\n{}",
    "two hosts": "GET /healthz HTTP/1.1\nHost: localhost\nHost: evil.example\n\n",
    "no host": "GET /healthz HTTP/1.0\n\n",
    "another version": "GET /healthz HTTP/9.9\nHost: localhost\n\n",
    "an old version": "GET /healthz\n\n",
    "another protocol": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": "PRI * HTTP/2.0\n\nSM\n\n",
    "an unknown method": "BREW /healthz HTTP/1.1\nHost: localhost\n\n",
    "CONNECT": "CONNECT evil.example:443 HTTP/1.1\nHost: localhost\n\n",
    "TRACE": "TRACE / HTTP/1.1\nHost: localhost\n\n",
    "OPTIONS": "OPTIONS * HTTP/1.1\nHost: localhost\n\n",
    "a proxy's request": "GET http://evil.example/ HTTP/1.1\nHost: localhost\n\n",
    "a path that climbs": "GET /page/../../../etc/passwd HTTP/1.1\nHost: localhost\n\n",
    "a zero in the path": "GET /page/%00 HTTP/1.1\nHost: localhost\n\n",
    "a path that is no UTF-8": "GET /v1/models/%ff%fe HTTP/1.1\nHost: localhost\n\n",
    "a long path": f"GET /{'a' * 8000} HTTP/1.1\nHost: localhost\n\n",
    "a folded header": "GET /healthz HTTP/1.1\nHost: localhost\nX: a\n b\n\n",
    "a control in a header": "GET /healthz HTTP/1.1\nHost: localhost\nX: a\x00b\n\n",
    "a socket": "GET / HTTP/1.1\nHost: localhost\nUpgrade: websocket\nConnection: Upgrade\n"
    "Sec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n",
    "many headers": "GET /healthz HTTP/1.1\nHost: localhost\n" + "A: b\n" * 3000 + "\n",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("runs")
    runs = [write_run(folder / "writer"), write_run(folder / "translator", "seq2seq")]
    with serving(create_app(runs, CONFIG), CONFIG) as port:
        yield port


def exchange(port: int, content: bytes) -> bytes:
    """What comes back, until the server closes the connection."""
    answer, end = bytearray(), time.monotonic() + PATIENCE
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(content)
            connection.settimeout(PATIENCE)
            while piece := connection.recv(1 << 16):
                answer += piece
                assert time.monotonic() < end, "it hangs"
        except ConnectionError:
            pass
    return bytes(answer)


def request(path: str, body: bytes, headers: str = JSON, method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def assert_harmless(answer: bytes) -> int | None:
    """The status of the first answer; None where the connection was closed instead."""
    if not answer:
        return None
    head, _, content = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    assert 200 <= status < 500 or status in (501, 505), answer[:500]
    assert b"content-security-policy: default-src 'none'" in head.lower()
    if status >= 400:
        assert not LEAKS.search(answer), answer[:500]
        if content:  # there is none for HEAD; another answer may come behind it
            envelope, _ = json.JSONDecoder().raw_decode(content.decode())
            assert envelope["error"].keys() == {"message", "type", "param", "code"}
    return status


@pytest.mark.sampled
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", POSTS)
def test_hostile_bodies(port: int, path: str, name: str) -> None:
    status = assert_harmless(exchange(port, request(path, BODIES[name])))
    assert status is None or 400 <= status < 500 or name in ("controls", "a million of them")


@pytest.mark.parametrize("name", HEADS)
def test_hostile_heads(port: int, name: str) -> None:
    assert_harmless(exchange(port, HEADS[name].replace("\n", "\r\n").encode("latin-1")))


@pytest.mark.sampled
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize("path", POSTS)
def test_wrong_methods(port: int, path: str, method: str) -> None:
    assert assert_harmless(exchange(port, request(path, b"{}", method=method))) == 405


def hostile(draw: random.Random) -> bytes:
    """A request that begins as a good one and is then damaged."""
    path = draw.choice([*POSTS, *GETS])
    body = draw.choice([*BODIES.values()])[: draw.choice([50, 500, 10**6])]
    head = draw.choice([*HEADS.values()]).replace("\n", "\r\n").encode("latin-1")
    content = draw.choice([request(path, body), request(path, body, method="GET"), head, head + request(path, body)])
    damaged = bytearray(content)
    for _ in range(draw.choice([0, 1, 3, 20])):
        index = draw.randrange(min(len(damaged), 400))
        match draw.randrange(3):
            case 0:
                damaged[index] = draw.randrange(256)
            case 1:
                del damaged[index]
            case 2:
                damaged[index:index] = draw.randbytes(draw.randrange(8))
    return bytes(damaged)


def assault(port: int, number: int, seed: int, seconds: float) -> None:
    """Send damaged requests; each has so many seconds until the client says that no more comes."""
    draw, n_answers = random.Random(seed), 0
    for _ in range(number):
        content = hostile(draw)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            answer = bytearray()
            try:
                connection.sendall(content)
                connection.settimeout(seconds)  # by then most that are whole have their answers
                try:
                    answer += connection.recv(1 << 16)
                except TimeoutError:
                    connection.shutdown(socket.SHUT_WR)
                connection.settimeout(PATIENCE)
                if answer:
                    connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(1 << 16):
                    answer += piece
            except TimeoutError:
                raise
            except OSError:  # it is closed already
                continue
            n_answers += bool(answer)
            assert_harmless(bytes(answer))
    assert n_answers > number / 4
    assert exchange(port, request("/healthz", b"", method="GET")).endswith(b'{"status":"ok"}')


def test_damaged_requests(port: int) -> None:
    assault(port, 200, seed=1, seconds=0.3)


@pytest.mark.campaign
@pytest.mark.timeout(3000)
def test_ten_thousand_damaged_requests(port: int) -> None:
    assault(port, 10_000, seed=2, seconds=0.03)
