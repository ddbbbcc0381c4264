"""Runs and trainings in the studio: what their files tell, while they change; trainings in processes of their own."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run
from starlette.testclient import TestClient

from clearhead.config.serving import ServerConfig
from clearhead.server.http.guard import frame_address
from clearhead.server.studio.app import create_studio
from clearhead.server.studio.records import Logs, read_records
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.history import History

TOKEN = "a-token-that-nobody-guesses"
PATIENCE = 120  # seconds
STEP = {"kind": "step", "loss": 2.5, "tokens": 64, "seconds": 0.5, "learning_rate": 0.01, "gradient_norm": 1.0}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.chdir(tmp_path)
    config = ServerConfig(device="cpu", engine="eager", token=TOKEN)
    headers = {"authorization": f"Bearer {TOKEN}"}
    app = create_studio(config)
    with TestClient(app, base_url="http://127.0.0.1", headers=headers) as client:
        yield client
    app.state.trainings.kill()


def write_log(run: RunFolder, steps: range, mode: str = "a") -> None:
    with run.metrics.open(mode, encoding="utf-8") as log:
        for step in steps:
            log.write(json.dumps({**STEP, "step": step, "loss": 3 - step / 100}) + "\n")


def test_runs_appear_and_go_by_themselves(client: TestClient) -> None:
    assert client.get("/studio/runs").json() == {"runs": [], "code": None}
    run = write_run(Path("runs/a"))
    write_log(run, range(1, 6))
    [entry] = client.get("/studio/runs").json()["runs"]
    assert (entry["name"], entry["state"], entry["step"], entry["objective"]) == ("a", "ready", 5, "causal")
    damaged = write_run(Path("runs/b"))
    (damaged.folder / "clearhead.toml").write_text("not [TOML", encoding="utf-8")
    states = {entry["name"]: entry["state"] for entry in client.get("/studio/runs").json()["runs"]}
    assert states == {"a": "ready", "b": "damaged"}
    shutil.rmtree("runs/a")
    shutil.rmtree("runs/b")
    assert client.get("/studio/runs").json() == {"runs": [], "code": None}
    assert client.get("/studio/runs/a").status_code == 404


def test_a_log_that_is_read_piece_by_piece_tells_what_the_whole_tells(tmp_path: Path) -> None:
    run, logs = write_run(tmp_path / "a"), Logs()
    assert logs.of(run).history.steps == 0
    for start in range(1, 40, 7):
        write_log(run, range(start, start + 7))
        with run.metrics.open("a", encoding="utf-8") as log:
            log.write('{"kind": "step", "st')  # a line that is being written
        history, whole = logs.of(run).history, History.of(run.records())
        assert (history.steps, history.train_loss, list(history.train)) == (
            whole.steps,
            whole.train_loss,
            list(whole.train),
        )
        run.metrics.write_text(run.metrics.read_text(encoding="utf-8").rpartition("\n")[0] + "\n", encoding="utf-8")
    write_log(run, range(1, 3), "w")  # a resumed run's log is cut: it is read anew
    assert logs.of(run).history.steps == 2


def test_the_curve_and_what_came_since_are_all_of_the_log(client: TestClient) -> None:
    run = write_run(Path("runs/a"))
    write_log(run, range(1, 4))
    curve = client.get("/studio/runs/a").json()
    assert [step for step, _ in curve["train"]] == [1, 2, 3]
    write_log(run, range(4, 7))
    events = (
        client.post("/studio/runs/a/events", json={"offset": curve["offset"], "stream": True})
        .text.strip()
        .split("\n\n")
    )
    [event] = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [record["step"] for record in event["records"]] == [4, 5, 6]
    assert event["state"] == "ready"
    assert event["offset"] == run.metrics.stat().st_size
    assert read_records(run, event["offset"]) == ([], event["offset"])


def test_a_model_that_was_saved_anew_is_loaded_anew(client: TestClient) -> None:
    write_run(Path("runs/a"))
    fields = {"model": "a", "text": "once"}
    before = client.post("/studio/logits", json=fields).json()["logits"]
    shutil.rmtree("runs/a")
    write_run(Path("runs/a"), n_heads=4)
    assert client.post("/studio/logits", json=fields).json()["logits"] != before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["architecture", "judged", "doctor"])
def test_a_frame_opens_with_its_own_key_alone(client: TestClient, kind: str) -> None:
    write_run(Path("runs/a"))
    address = client.get("/studio/runs/a").json()[kind]
    assert address == frame_address(f"/frame/{kind}/a", TOKEN)
    nobody = {"authorization": ""}
    other = "doctor" if kind != "doctor" else "architecture"
    for wrong in (address.partition("?")[0], address[:-1] + "x", address.replace(kind, other), address + "&x=1"):
        assert client.get(wrong, headers=nobody).status_code == 401
    response = client.get(address, headers=nobody)
    assert response.status_code == 200
    assert response.headers["content-security-policy"] == "frame-ancestors 'self'"
    assert "Content-Security-Policy" in response.text  # its own, which allows its own scripts alone


def test_what_the_doctor_says_stands_at_the_boxes_that_it_speaks_of(client: TestClient) -> None:
    write_run(Path("runs/a"))
    detail = client.get("/studio/runs/a").json()
    plain, judged = (client.get(detail[kind]).text for kind in ("architecture", "judged"))
    assert 'class="mark' not in plain
    assert "runs/a is healthy" in judged
    attention = judged.index('data-detail="stack.blocks.0.self_attention.part"')
    assert 'class="mark pass"' in judged[attention : judged.index('class="equations"', attention)]


CODE = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
"""


@pytest.mark.campaign
def test_a_model_of_code_is_examined_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("model.py")
    path.write_text(CODE, encoding="utf-8")
    app = create_studio(ServerConfig(device="cpu", engine="eager", token=TOKEN), code="model.py:build")
    with TestClient(app, base_url="http://127.0.0.1", headers={"authorization": f"Bearer {TOKEN}"}) as client:
        code = client.get("/studio/runs").json()["code"]
        assert code == {"name": "model.py:build", "doctor": frame_address("/frame/code", TOKEN)}
        assert "model.py:build is " in client.get(code["doctor"]).text
        path.write_text(CODE.replace("build", "make"), encoding="utf-8")
        os.utime(path, ns=(1, 1))  # another time, whatever the clock's steps
        refusal = client.get(code["doctor"])
        assert refusal.status_code == 400
        assert "there is no 'build'" in refusal.json()["error"]["message"]
    with TestClient(create_studio(ServerConfig(device="cpu", engine="eager")), base_url="http://127.0.0.1") as client:
        assert client.get("/frame/code").status_code == 404


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"name": "../x", "corpus": "stories"}, 400),
        ({"name": "a/b", "corpus": "stories"}, 400),
        ({"name": "-x", "corpus": "stories"}, 400),
        ({"name": ".studio", "corpus": "stories"}, 400),
        ({"name": "x", "corpus": "/etc/passwd"}, 400),
        ({"name": "x", "corpus": "stories", "preset": "--out"}, 400),
        ({"name": "x", "text": "a", "corpus": "stories"}, 400),
        ({"name": "x"}, 400),
        ({"name": "x", "corpus": "stories", "minutes": 0}, 400),
        ({"name": "taken", "corpus": "stories"}, 409),
    ],
)
def test_a_training_that_cannot_be_is_refused(client: TestClient, fields: Any, status: int) -> None:
    Path("runs/taken").mkdir(parents=True)
    response = client.post("/studio/trainings", json=fields)
    assert response.status_code == status, response.text
    assert sorted(path.name for path in Path("runs").iterdir()) == ["taken"]


def test_a_pasted_text_is_trained_on_stopped_and_gone_on_with(client: TestClient) -> None:
    fields = {"name": "mine", "text": "the cat sat on the mat. " * 4000, "minutes": 30, "preset": "tiny"}
    assert client.post("/studio/trainings", json=fields).status_code == 201
    wait_for(client, lambda entry: entry["state"] == "training" and entry["step"] >= 3)
    assert client.post("/studio/runs/mine/resume", json={}).status_code == 409
    assert client.post("/studio/runs/mine/stop", json={}).status_code == 200
    entry = wait_for(client, lambda entry: entry["state"] == "ready")
    [training] = until(lambda: [t for t in trainings(client) if not t["is_running"]])
    assert training["exit_code"] == 130
    assert any("stop" in line for line in training["lines"])
    assert client.post("/studio/runs/mine/stop", json={}).status_code == 409
    assert client.post("/studio/runs/mine/resume", json={}).status_code == 201
    wait_for(client, lambda later: later["state"] == "training" and later["step"] > entry["step"])
    assert client.post("/studio/runs/mine/stop", json={}).status_code == 200
    until(lambda: not any(training["is_running"] for training in trainings(client)))


def test_a_training_that_fails_says_why(client: TestClient) -> None:
    assert client.post("/studio/trainings", json={"name": "x", "text": "ab"}).status_code == 201
    [training] = until(lambda: [t for t in trainings(client) if not t["is_running"]])
    assert training["exit_code"] == 3
    assert "at least 200 are needed" in " ".join(training["lines"])


def trainings(client: TestClient) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = client.get("/studio/trainings").json()["trainings"]
    return listed


def wait_for(client: TestClient, is_so: Any) -> dict[str, Any]:
    def entry() -> dict[str, Any] | None:
        runs = client.get("/studio/runs").json()["runs"]
        return next((run for run in runs if run["name"] == "mine" and is_so(run)), None)

    result: dict[str, Any] = until(entry)
    return result


def until(look: Any) -> Any:
    end = time.monotonic() + PATIENCE
    while not (result := look()):
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.2)
    return result


def test_an_address_that_opens_the_studio_works_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = create_studio(ServerConfig(device="cpu", token=TOKEN), {"key": "/#token=secret"})
    with TestClient(app, base_url="http://127.0.0.1", follow_redirects=False) as client:
        assert client.get("/open/other").status_code == 404
        response = client.get("/open/key")
        assert (response.status_code, response.headers["location"]) == (303, "/#token=secret")
        assert client.get("/open/key").status_code == 404


def test_a_log_with_absurd_numbers_spoils_nothing(client: TestClient) -> None:
    for name, seconds in (("a", 1e-300), ("b", -1.0), ("c", 1e99)):
        run = write_run(Path("runs") / name)
        run.metrics.write_text(json.dumps({**STEP, "step": 1, "tokens": 9 * 10**18, "seconds": seconds}) + "\n")
    runs = client.get("/studio/runs").json()["runs"]
    assert len(runs) == 3
    for run in runs:
        assert client.get(f"/studio/runs/{run['name']}").status_code == 200


def test_a_refused_training_leaves_the_text_of_the_running_one(client: TestClient) -> None:
    fields = {"name": "x", "text": "first " * 4000, "minutes": 30, "preset": "tiny"}
    assert client.post("/studio/trainings", json=fields).status_code == 201
    assert client.post("/studio/trainings", json={**fields, "text": "second"}).status_code == 409
    assert [path.name for path in Path("runs/.studio").glob("*.txt")] == ["x.txt"]
    assert Path("runs/.studio/x.txt").read_text(encoding="utf-8").startswith("first")


@pytest.mark.campaign
def test_a_second_text_of_a_name_goes_beside_the_first(client: TestClient) -> None:
    for _ in range(2):
        assert client.post("/studio/trainings", json={"name": "x", "text": "ab"}).status_code == 201
        until(lambda: not any(training["is_running"] for training in trainings(client)))
    assert sorted(path.name for path in Path("runs/.studio").glob("*.txt")) == ["x-2.txt", "x.txt"]


@pytest.mark.campaign
def test_no_file_here_passes_for_a_library(client: TestClient) -> None:
    Path("random.py").write_text("raise SystemExit(77)", encoding="utf-8")
    assert client.post("/studio/trainings", json={"name": "x", "text": "ab"}).status_code == 201
    [training] = until(lambda: [t for t in trainings(client) if not t["is_running"]])
    assert training["exit_code"] == 3
