"""Tokens of a text and back; and what the server counts."""

import re
from collections.abc import Iterator

import pytest
from run_folders import write_run
from starlette.testclient import TestClient

from clearhead.config.serving import ServerConfig
from clearhead.server import create_app
from clearhead.server.metrics import sample

NAME = 'a"\\b'
LINE = re.compile(r'[a-z_]+(\{([a-z]+="(\\["\\n]|[^"\\\n])*",?)+\})? [0-9.e+-]+')


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    run = write_run(tmp_path_factory.mktemp("runs") / NAME)
    with TestClient(create_app([run], ServerConfig(engine="eager")), base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("text", ["", "the cat", "é🙂 a\n"])
def test_tokens_and_back(client: TestClient, text: str) -> None:
    answer = client.post("/tokenize", json={"text": text, "model": NAME}).json()
    assert answer["count"] == len(answer["tokens"])
    assert (answer["count"] == 0) == (text == "")
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"model": NAME, "text": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"text": "Ω"}, "text"),
        ("/tokenize", {"text": 3}, "text"),
        ("/tokenize", {}, "text"),
        ("/tokenize", {"text": "a", "model": "nobody"}, "model"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [[1]]}, "tokens[0]"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(
    client: TestClient, path: str, body: dict[str, object], param: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


def metrics_of(client: TestClient) -> dict[str, float]:
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.split("\n")
    assert lines.pop() == ""
    values = [line for line in lines if not line.startswith("# ")]
    assert all(LINE.fullmatch(line) for line in values), values
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in values)}


def test_requests_tokens_and_times_are_counted(client: TestClient) -> None:
    body = {"prompt": "the", "max_tokens": 5, "stream": True}
    before = metrics_of(client)
    assert client.post("/v1/completions", json=body).status_code == 200
    assert client.get("/nowhere/" + "x" * 50).status_code == 404
    assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 403
    after = metrics_of(client)
    label = sample("x", {"model": NAME}, 1).removeprefix("x").removesuffix(" 1")
    gained = {name: value - before.get(name, 0) for name, value in after.items()}
    assert gained['clearhead_requests_total{route="/v1/completions",status="200"}'] == 1
    assert gained['clearhead_requests_total{route="other",status="404"}'] == 1
    assert gained['clearhead_requests_total{route="other",status="403"}'] == 1
    assert gained[f"clearhead_prompt_tokens_total{label}"] == 3
    assert 1 <= gained[f"clearhead_generated_tokens_total{label}"] <= 5
    assert gained["clearhead_first_event_seconds_count"] == 1
    assert gained['clearhead_first_event_seconds_bucket{le="+Inf"}'] == 1
    assert after[f"clearhead_texts_running{label}"] == after["clearhead_requests_running"] - 1 == 0


def test_a_path_makes_no_label_of_its_own(client: TestClient) -> None:
    number = len(metrics_of(client))
    for index in range(50):
        client.get(f"/v1/models/{index}")
        client.get(f"/{index}")
    assert len(metrics_of(client)) <= number + 2


def test_labels_are_escaped_and_bounded() -> None:
    assert sample("a", {"b": 'x"\\\ny'}, 1) == 'a{b="x\\"\\\\\\ny"} 1'
    assert len(sample("a", {"b": "x" * 10_000}, 1)) < 300
