"""Bodies: what is bounded, and what a person reads of a mistake."""

import json
from typing import Annotated

import pytest
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from clearhead.config.serving import ServerConfig
from clearhead.server.http.bodies import RequestBody, read_body
from clearhead.server.http.errors import EXCEPTION_HANDLERS

Texts = Annotated[list[str], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]


class Message(RequestBody):
    role: str


class Question(RequestBody):
    prompt: str | Texts | Ids = ""
    temperature: float = Field(1.0, ge=0, le=2)
    n: int = Field(1, ge=1)
    messages: tuple[Message, ...] = ()


async def echo(request: Request) -> Response:
    question = await read_body(request, Question)
    return JSONResponse(question.model_dump())


@pytest.fixture
def client() -> TestClient:
    app = Starlette(routes=[Route("/echo", echo, methods=["POST"])], exception_handlers=EXCEPTION_HANDLERS)
    app.state.config = ServerConfig(max_body_bytes=2048)
    return TestClient(app)


def refusal(client: TestClient, content: bytes, **headers: str) -> tuple[int, str, str | None, str | None]:
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    response = client.post("/echo", content=content, headers=sent)
    envelope = response.json()
    assert envelope.keys() == {"error"}
    error = envelope["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return response.status_code, error["message"], error["param"], error["code"]


def test_a_body_becomes_its_model(client: TestClient) -> None:
    body = {"prompt": [1, 2], "temperature": 1, "messages": [{"role": "user"}]}
    assert client.post("/echo", json=body).json() == {"n": 1, **body}


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"temperature": 3}, "`temperature` must be at most 2.0, not 3", "temperature"),
        ({"temperature": "1"}, '`temperature` must be a number, not "1"', "temperature"),
        ({"n": 0}, "`n` must be at least 1, not 0", "n"),
        ({"n": 1.5}, "`n` must be a whole number, not 1.5", "n"),
        ({"n": True}, "`n` must be a whole number, not true", "n"),
        ({"n": 2**63}, "`n`: must be a number below 2**63", "n"),
        ({"temprature": 1}, "there is no field `temprature`; did you mean 'temperature'?", "temprature"),
        ({"messages": [{"role": "a"}, {"role": 1}]}, "`messages[1].role` must be a text, not 1", "messages[1].role"),
        ({"messages": [{}]}, "`messages[0].role` is missing", "messages[0].role"),
        ({"prompt": 1}, "`prompt` must be a text or a list of texts or a list of token ids", "prompt"),
        ({"prompt": ["a", 1]}, "`prompt` must be a text or a list of texts or a list of token ids", "prompt"),
        ([], "the body must be a JSON object", None),
        (None, "the body must be a JSON object", None),
        ({"../../etc/passwd": 1}, 'there is no field `"../../etc/passwd"`', '"../../etc/passwd"'),
    ],
)
def test_a_mistake_is_named_by_its_field(client: TestClient, body: object, message: str | None, param: str) -> None:
    status, shown, field, _ = refusal(client, json.dumps(body).encode())
    assert (status, field) == (400, param)
    assert message is None or shown == message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"temperature": NaN}',
        b'{"temperature": 1e999}',
        b'{"temperature": -Infinity}',
        b"[" * 1000,
        b'{"a":' * 400,
        b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"n": ' + b"9" * 1500 + b"}",
        b'{"prompt": "a"} {}',
        b"{'prompt': 'a'}",
        b'\xef\xbb\xbf{"prompt": 1}',
        b"\0",
    ],
)
def test_what_is_no_such_json_is_a_400_without_a_traceback(client: TestClient, content: bytes) -> None:
    status, message, _, _ = refusal(client, content)
    assert status == 400
    assert len(message) < 300
    assert "Traceback" not in message
    assert "pydantic" not in message


def test_a_body_over_the_limit_is_refused_by_its_header_and_by_what_comes(client: TestClient) -> None:
    assert refusal(client, b" " * 2049)[:2] == (413, "the request's body is larger than 2,048 bytes")
    chunks = iter([b" " * 1025, b" " * 1024])
    response = client.post("/echo", content=chunks, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert client.post("/echo", content=b"{}" + b" " * 2046, headers={"Content-Type": "application/json"}).is_success


@pytest.mark.parametrize(
    "headers",
    [
        {"Content_Type": "text/plain"},
        {"Content_Type": ""},
        {"Content_Type": "application/x-www-form-urlencoded"},
        {"Content_Type": "application/json; charset=utf-16"},
        {"Content_Encoding": "gzip"},
    ],
)
def test_only_plain_json_in_utf8_is_read(client: TestClient, headers: dict[str, str]) -> None:
    assert refusal(client, b"{}", **headers)[0] == 415


def test_a_body_that_does_not_come_is_not_waited_for(client: TestClient) -> None:
    import anyio

    scope: dict[str, object] = {"type": "http", "method": "POST", "path": "/echo", "query_string": b"", "root_path": ""}
    scope |= {"headers": [(b"content-type", b"application/json")], "asgi": {"version": "3.0"}}
    client.app.state.config = ServerConfig(receive_seconds=0.05)  # type: ignore[attr-defined]
    sent = []

    async def nothing() -> dict[str, object]:
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: object) -> None:
        sent.append(message)

    async def main() -> None:
        with anyio.fail_after(20):
            await client.app(scope, nothing, send)

    anyio.run(main)
    assert sent[0]["status"] == 408  # type: ignore[index]


def test_a_million_wrong_items_make_one_error(client: TestClient) -> None:
    client.app.state.config = ServerConfig()  # type: ignore[attr-defined]
    status, message, _, _ = refusal(client, b'{"prompt": [' + b"[]," * 3 * 10**5 + b"[]]}")
    assert (status, message) == (400, "`prompt` must be a text or a list of texts or a list of token ids")
