"""What the studio sends of a model is what the library computes, to the last bit where it is numbers."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_folders import write_run
from starlette.testclient import TestClient

from clearhead import inspection
from clearhead.config.serving import ServerConfig
from clearhead.inspection.heads.ablation import without_heads
from clearhead.server.studio.app import create_studio
from clearhead.server.studio.views import FORBIDDEN, THUMBNAIL, thumbnails
from clearhead.workflows import attend, predict
from clearhead.workflows.prompts import read_prompt

TEXTS = {"causal": "once upon a time", "masked": "once [MASK] a time", "seq2seq": "the old dog"}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.chdir(tmp_path)
    for objective in TEXTS:
        write_run(Path("runs") / objective, objective)
    with TestClient(create_studio(ServerConfig(device="cpu", engine="eager")), base_url="http://127.0.0.1") as client:
        yield client


def ask(client: TestClient, path: str, status: int = 200, **fields: object) -> Any:
    response = client.post(f"/studio/{path}", json=fields)
    assert response.status_code == status, response.text
    return response.json()


@pytest.mark.parametrize("objective", TEXTS)
def test_the_wall_and_each_layer_are_the_attention_of_the_library(client: TestClient, objective: str) -> None:
    text = TEXTS[objective]
    for of in ask(client, "attention", model=objective, text=text)["kinds"]:
        view = attend(objective, text, of=of)
        answer = ask(client, "attention", model=objective, text=text, of=of)
        assert (answer["queries"], answer["keys"]) == (list(view.queries), list(view.keys))
        assert answer["focus"] == [focus.as_dict() for focus in view.heads]
        for layer in range(answer["layers"]):
            fields = {"model": objective, "text": text, "of": of, "layer": layer}
            response = client.post("/studio/attention/weights", json=fields)
            weights = np.frombuffer(response.content, "<f4").reshape(view.weights[layer].shape)
            assert np.array_equal(np.isnan(weights), np.broadcast_to(~view.allowed, weights.shape))
            assert np.array_equal(np.nan_to_num(weights), view.weights[layer] * view.allowed)
        small = np.frombuffer(base64.b64decode(answer["wall"]["weights"]), np.uint8)
        assert np.array_equal(small, thumbnails(view.weights, view.allowed).ravel())


@pytest.mark.parametrize("size", [1, 5, THUMBNAIL, THUMBNAIL + 1, 200])
def test_a_thumbnail_keeps_the_largest_weight_of_every_part(size: int) -> None:
    weights = np.random.default_rng(0).random((2, 3, size, size)).astype(np.float32)
    allowed = np.tri(size, dtype=bool)
    small = thumbnails(weights, allowed)
    assert small.shape == (2, 3, min(size, THUMBNAIL), min(size, THUMBNAIL))
    for head in np.ndindex(2, 3):
        assert small[head][small[head] != FORBIDDEN].max() == round(float((weights[head] * allowed).max()) * 254)
    if size <= THUMBNAIL:
        assert np.array_equal(small == FORBIDDEN, np.broadcast_to(~allowed, small.shape))


@pytest.mark.parametrize("objective", TEXTS)
def test_a_cell_adds_up_to_its_weight(client: TestClient, objective: str) -> None:
    text = TEXTS[objective]
    view = attend(objective, text)
    for query, key in np.argwhere(view.allowed).tolist()[:6]:
        cell = ask(client, "attention/cell", model=objective, text=text, layer=1, head=1, query=query, key=key)
        assert np.dot(cell["q"], cell["k"]) == pytest.approx(cell["product"])
        assert cell["product"] * cell["scale"] + cell["bias"] == pytest.approx(cell["score"])
        assert np.exp(cell["score"] - cell["log_total"]) == pytest.approx(cell["weight"], abs=1e-6)
        assert cell["weight"] == pytest.approx(float(view.weights[1, 1, query, key]))


def test_what_the_mask_forbids_has_no_score(client: TestClient) -> None:
    fields: dict[str, Any] = {"model": "causal", "text": "once", "layer": 0, "head": 0, "query": 0, "key": 3}
    cell = ask(client, "attention/cell", **fields)
    assert (cell["score"], cell["weight"]) == (None, 0)


@pytest.mark.parametrize("objective", TEXTS)
def test_odds_are_those_of_the_library(client: TestClient, objective: str) -> None:
    text = TEXTS[objective]
    expected = predict(objective, text, lens=True).as_dict()
    assert ask(client, "predict", model=objective, text=text, lens=True) == {**expected, "notices": []}
    prompt = read_prompt(objective, text)
    with torch.no_grad():
        expected = prompt.model(*prompt.inputs)[0]
    for position in (0, -1):
        answer = ask(client, "logits", model=objective, text=text, position=position)
        row = np.frombuffer(base64.b64decode(answer["logits"]), "<f4")
        assert np.allclose(row, expected[position], atol=1e-5)
        assert answer["top"][0][0] == int(row.argmax())


@pytest.mark.parametrize("objective", TEXTS)
def test_a_head_that_is_off_is_off_as_with_intervene(client: TestClient, objective: str) -> None:
    text = TEXTS[objective]
    kinds = ask(client, "attention", model=objective, text=text)["kinds"]
    heads = [(kind, layer, 1) for layer, kind in enumerate(kinds[:2])]
    prompt = read_prompt(objective, text, "the dog" if objective == "seq2seq" else None)
    with torch.no_grad(), inspection.intervene(prompt.model, without_heads(prompt.model, heads)):
        expected = prompt.model(*prompt.inputs)[0, -1]
    fields: dict[str, Any] = {"model": objective, "text": text, "without": heads}
    if objective == "seq2seq":
        fields["target"] = "the dog"
    row = np.frombuffer(base64.b64decode(ask(client, "logits", **fields)["logits"]), "<f4")
    assert np.allclose(row, expected, atol=1e-5)
    plain = np.frombuffer(base64.b64decode(ask(client, "logits", **fields | {"without": []})["logits"]), "<f4")
    assert not np.allclose(row, plain, atol=1e-3)


def test_an_attribution_is_that_of_the_library(client: TestClient) -> None:
    prompt = read_prompt("causal", "once upon")
    view = inspection.attribute(prompt.model, prompt.inputs[0], target=3)
    expected = view.as_dict()
    answer = ask(client, "attribution", model="causal", text="once upon", token=3)
    assert answer["value"] == pytest.approx(expected["value"])
    assert [token["score"] for token in answer["tokens"]] == pytest.approx([entry["score"] for entry in view.rows()])
    assert [token["token"] for token in answer["tokens"]] == prompt.labels


@pytest.mark.parametrize(
    ("path", "fields", "word"),
    [
        ("attention", {"text": ""}, "no text"),
        ("attention", {"text": "once", "of": "cross"}, "cross-attention"),
        ("attention", {"text": "once", "without": [["self", 0, 9]]}, "no head 9"),
        ("attention", {"text": "once", "without": [["x", 0, 0]]}, "without"),
        ("attention", {"text": "once", "target": "x"}, "no translator"),
        ("attention", {"text": "ONCE"}, "O"),
        ("attention/weights", {"text": "once", "layer": 5}, "no layer 5"),
        ("attention/cell", {"text": "once", "layer": 0, "head": 0, "query": 9, "key": 0}, "no query 9"),
        ("logits", {"text": "once", "position": 4}, "no position 4"),
        ("attribution", {"text": "once", "token": 10**6}, "vocabulary"),
        ("predict", {"text": "once", "top_k": 0}, "top_k"),
    ],
)
def test_a_mistake_gets_a_sentence_without_a_path(client: TestClient, path: str, fields: Any, word: str) -> None:
    message = ask(client, path, 400, model="causal", **fields)["error"]["message"]
    assert word in message
    assert "runs/" not in message


def test_a_text_goes_on_as_its_tokenizer_writes_it(client: TestClient) -> None:
    tokenizer = read_prompt("causal", "once").tokenizer
    fields: dict[str, Any] = {"model": "causal", "text": "on🙂ce", "position": 2}
    for token in tokenizer.encode("x 🙂"):
        text = ask(client, "continued", **fields, token=int(token))["text"]
        assert text == "on🙂" + tokenizer.decode([int(token)])
    for token in (tokenizer.end_of_document, tokenizer.vocab_size):
        assert "adds nothing" in ask(client, "continued", 400, **fields, token=token)["error"]["message"]
    for model in ("masked", "seq2seq"):
        assert (
            "no language model"
            in ask(client, "continued", 400, **{**fields, "model": model}, token=3)["error"]["message"]
        )


@pytest.mark.parametrize("path", ["attention", "predict", "logits", "xray"])
def test_an_answer_says_where_only_a_part_of_a_text_is_read(client: TestClient, path: str) -> None:
    assert ask(client, path, model="causal", text="once")["notices"] == []
    [notice] = ask(client, path, model="causal", text="once " * 40)["notices"]
    assert "only the last ones are read" in notice
