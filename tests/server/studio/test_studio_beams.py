"""The tree that the studio draws: its translations are those of a search, under every length penalty."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run
from starlette.testclient import TestClient

from clearhead.config.serving import ServerConfig
from clearhead.server.studio.app import create_studio
from clearhead.workflows import translate


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.chdir(tmp_path)
    for objective in ("causal", "seq2seq"):
        write_run(Path("runs") / objective, objective)
    with TestClient(create_studio(ServerConfig(device="cpu", engine="eager")), base_url="http://127.0.0.1") as client:
        yield client


def ask(client: TestClient, status: int = 200, **fields: object) -> Any:
    response = client.post("/studio/beams", json=fields)
    assert response.status_code == status, response.text
    return response.json()


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_translations_are_those_of_a_search(client: TestClient, beam_size: int, alpha: float) -> None:
    tree = ask(client, model="seq2seq", text="the old dog", beam_size=beam_size)
    scored = []
    for translation in tree["translations"]:
        node = tree["nodes"][translation["node"]]
        score = node["log_prob"] / ((5 + translation["length"]) / 6) ** alpha
        scored.append((node["state"] == "finished", score, translation["text"]))
    ranked = sorted(scored, key=lambda entry: entry[1], reverse=True)
    best = [entry for entry in ranked if entry[0]] + [entry for entry in scored if not entry[0]]
    options = {"beam_size": beam_size, "n_best": beam_size, "length_penalty": alpha, "engine": "eager"}
    [expected] = translate("seq2seq", "the old dog", options)
    assert [text for *_, text in best[:beam_size]] == [translation.text for translation in expected]
    assert [score for _, score, _ in best[:beam_size]] == pytest.approx([t.score for t in expected], rel=1e-9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "causal", "text": "once"}, "no translator"),
        ({"model": "seq2seq", "text": " "}, "no sentence"),
        ({"model": "seq2seq", "text": "the dog", "beam_size": 99}, "beam_size"),
    ],
)
def test_a_mistake_gets_a_sentence(client: TestClient, fields: dict[str, Any], message: str) -> None:
    assert message in ask(client, 400, **fields)["error"]["message"]
