"""The X-ray of the studio: its steps are those of `trace`, its numbers those of `record`, to the last bit."""

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
from clearhead.inspection.capture.vectors import token_vectors
from clearhead.inspection.heads.ablation import without_heads
from clearhead.server.studio import xray
from clearhead.server.studio.app import create_studio
from clearhead.workflows import trace
from clearhead.workflows.prompts import read_prompt

TEXTS = {"causal": "once upon a time", "masked": "once [MASK] a time", "seq2seq": "the old dog"}
objectives = pytest.mark.parametrize("objective", TEXTS)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.chdir(tmp_path)
    for objective in TEXTS:
        write_run(Path("runs") / objective, objective)
    with TestClient(create_studio(ServerConfig(device="cpu", engine="eager")), base_url="http://127.0.0.1") as client:
        yield client


def ask(client: TestClient, status: int = 200, path: str = "xray", **fields: object) -> Any:
    response = client.post(f"/studio/{path}", json=fields)
    assert response.status_code == status, response.text
    return response.json()


def numbers(client: TestClient, rows: int, **fields: object) -> np.ndarray[Any, Any]:
    response = client.post("/studio/xray/values", json=fields)
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, "<f4").reshape(rows, -1)


@objectives
def test_the_steps_are_those_of_trace(client: TestClient, objective: str) -> None:
    text = TEXTS[objective]
    table = trace(f"runs/{objective}", text)
    answer = ask(client, model=objective, text=text, fold=False)
    assert answer["verdict"] == table.verdict
    assert len(answer["rows"]) == len(table.steps)
    for row, step in zip(answer["rows"], table.steps, strict=True):
        for name in ("module", "operation", "bytes", "parameters"):
            assert row[name] == getattr(step, name)
        assert (tuple(row["shape"]), tuple(row["axes"])) == (step.shape, step.axes)
        assert row["line"].endswith(f".py:{step.line}")
        assert "/" not in row["line"]
    folded = ask(client, model=objective, text=text)["rows"]
    assert any("sentence" in row for row in folded)
    assert [row for row in folded if "sentence" not in row] == [row for row in answer["rows"] if row in folded]


@objectives
def test_the_numbers_are_those_of_record(client: TestClient, objective: str) -> None:
    text = TEXTS[objective]
    prompt = read_prompt(objective, text)
    with torch.no_grad(), inspection.record(prompt.model) as recorded:
        prompt.model(*prompt.inputs)
    answer = ask(client, model=objective, text=text)
    assert [entry["name"] for entry in answer["activations"]] == recorded.names
    for entry in answer["activations"][::8]:
        array = recorded[entry["name"]]
        assert tuple(entry["shape"]) == array.shape
        expected = array.reshape(entry["matrices"], entry["rows"], entry["columns"])
        last = entry["matrices"] - 1
        fields = {"model": objective, "text": text, "name": entry["name"], "index": last}
        assert np.array_equal(numbers(client, entry["rows"], **fields), expected[last])


@objectives
def test_the_vectors_are_those_that_the_model_begins_with(client: TestClient, objective: str) -> None:
    text = TEXTS[objective]
    prompt = read_prompt(objective, text)
    answer = ask(client, model=objective, text=text)
    assert [side["ids"] for side in answer["sides"]] == [ids[0].tolist() for ids in prompt.inputs]
    assert answer["sides"][-1]["tokens"] == prompt.labels
    names = [entry["name"] for entry in answer["vectors"]]
    for side in token_vectors(prompt.model, *prompt.inputs):
        prefix = "" if side.side == "text" else f"{side.side} "
        fields = {"model": objective, "text": text}
        shown = numbers(client, len(side.embedding), **fields, name=f"{prefix}embedding vectors")
        assert np.array_equal(shown, side.embedding)
        assert (f"{prefix}position vectors" in names) == (side.positions is not None)
        if side.positions is not None:
            shown = numbers(client, len(side.positions), **fields, name=f"{prefix}position vectors")
            assert np.array_equal(shown, side.positions)


def test_a_wide_matrix_comes_in_parts(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xray, "WIDTH", 5)
    fields: dict[str, Any] = {"model": "causal", "text": "once", "name": "output"}
    entry = ask(client, model="causal", text="once")["activations"][-1]
    parts = [numbers(client, 4, **fields, start=start) for start in range(0, entry["columns"], 5)]
    assert {part.shape[1] for part in parts[:-1]} == {5}
    prompt = read_prompt("causal", "once")
    with torch.no_grad():
        assert np.array_equal(np.concatenate(parts, axis=1), prompt.model(*prompt.inputs)[0])


def test_a_head_that_is_off_changes_the_numbers_and_no_step(client: TestClient) -> None:
    fields: dict[str, Any] = {"model": "causal", "text": "once", "without": [("self", 0, 1)]}
    assert ask(client, **fields) == ask(client, **fields | {"without": []})
    prompt = read_prompt("causal", "once")
    heads = without_heads(prompt.model, [("self", 0, 1)])
    with torch.no_grad(), inspection.intervene(prompt.model, heads), inspection.record(prompt.model) as recorded:
        prompt.model(*prompt.inputs)
    shown = numbers(client, 4, **fields, name="stack.blocks.0")
    assert np.array_equal(shown, recorded["stack.blocks.0"][0])
    assert not np.allclose(shown, numbers(client, 4, **fields | {"without": []}, name="stack.blocks.0"), atol=1e-3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "nothing"}, "nothing"),
        ({"name": "*"}, "one activation"),
        ({"name": "output", "start": 10**9}, "`start`"),
        ({"name": "output", "index": 1}, "`index`"),
        ({"name": "source embedding vectors"}, "source embedding"),
    ],
)
def test_a_mistake_gets_a_sentence(client: TestClient, fields: dict[str, Any], message: str) -> None:
    error = ask(client, 400, path="xray/values", model="causal", text="once", **fields)["error"]
    assert message in error["message"]
