"""Errors: one envelope, whatever went wrong, and nothing of the machine in it."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from clearhead.errors import ClearheadError, DataError, InputError, UsageError
from clearhead.server.http.errors import EXCEPTION_HANDLERS, FAILED, HttpError

RAISED: dict[str, Exception] = {
    "http": HttpError(422, "`n` is\u2028too large", "n", "too_large"),
    "busy": HttpError(429, "too many", retry_after=3),
    "usage": UsageError("`top_k` must be at least 1"),
    "input": InputError("token 9 is not in the vocabulary"),
    "data": DataError("/home/somebody/runs/a is damaged"),
    "clearhead": ClearheadError("/home/somebody/runs/a cannot be read"),
    "bug": ZeroDivisionError("/home/somebody/secret.py"),
}


async def fail(request: Request) -> Response:
    raise RAISED[request.path_params["name"]]


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = Starlette(routes=[Route("/{name}", fail)], exception_handlers=EXCEPTION_HANDLERS)
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("name", "status", "message", "kind"),
    [
        ("http", 422, "`n` is\\u2028too large", "invalid_request_error"),
        ("busy", 429, "too many", "rate_limit_error"),
        ("usage", 400, "`top_k` must be at least 1", "invalid_request_error"),
        ("input", 400, "token 9 is not in the vocabulary", "invalid_request_error"),
        ("data", 500, FAILED, "server_error"),
        ("clearhead", 500, FAILED, "server_error"),
        ("bug", 500, FAILED, "server_error"),
    ],
)
def test_an_error_is_the_envelope(client: TestClient, name: str, status: int, message: str, kind: str) -> None:
    response = client.get(f"/{name}")
    error = response.json()["error"]
    assert (response.status_code, error["message"], error["type"]) == (status, message, kind)
    assert "somebody" not in response.text
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("name", list(RAISED))
def test_the_log_says_what_the_answer_does_not(client: TestClient, name: str, caplog: pytest.LogCaptureFixture) -> None:
    is_told = client.get(f"/{name}").json()["error"]["message"] != FAILED
    traces = [record for record in caplog.records if record.exc_info is not None and "clearhead" in record.name]
    assert len(traces) == (not is_told)


def test_a_field_a_code_and_a_time_are_passed_on(client: TestClient) -> None:
    error = client.get("/http").json()["error"]
    assert (error["param"], error["code"]) == ("n", "too_large")
    assert client.get("/busy").headers["retry-after"] == "3"


def test_unknown_paths_and_methods_are_the_envelope_as_well(client: TestClient) -> None:
    missing, wrong = client.get("/a/b"), client.delete("/http")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert missing.json()["error"]["type"] == wrong.json()["error"]["type"] == "invalid_request_error"
    assert "GET" in wrong.headers["allow"]
