"""Runs, names and clients that mean harm: the studio lists what it can, refuses the rest, and answers all others."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from filelock import FileLock
from hostile_texts import hostile_texts
from run_folders import write_run
from running_server import running_app
from starlette.testclient import TestClient

from clearhead.config.serving import ServerConfig
from clearhead.server.http.errors import HttpError
from clearhead.server.studio import frames, records, runs
from clearhead.server.studio.app import create_studio
from clearhead.server.studio.frames import MadeOnce
from clearhead.server.studio.records import Logs, read_records
from clearhead.server.studio.trainings import NAME

STEP = {"kind": "step", "step": 1, "loss": 2.5, "tokens": 64, "seconds": 0.5}
SECRET = "nobody reads this"
PATIENCE = 60  # seconds
ROUTES = ("runs", "choices", "trainings", "runs/a")


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    (tmp_path / "here/runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    app = create_studio(ServerConfig(device="cpu", engine="eager"))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client
    app.state.trainings.kill()


def listed(client: TestClient) -> dict[str, dict[str, Any]]:
    response = client.get("/studio/runs")
    assert response.status_code == 200, response.text
    return {entry["name"]: entry for entry in response.json()["runs"]}


@pytest.mark.sampled
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}, {"host": "127.0.0.1@x"}],
)
def test_other_hosts_and_origins_are_refused(client: TestClient, path: str, headers: dict[str, str]) -> None:
    write_run(Path("runs/a"))
    assert client.get(f"/studio/{path}").status_code == 200
    assert client.get(f"/studio/{path}", headers=headers).status_code == 403
    assert client.post("/studio/runs/a/stop", json={}, headers=headers).status_code == 403
    assert client.get("/frame/architecture/a", headers=headers).status_code == 403


@pytest.mark.parametrize("name", ["../secret", "..%2fsecret", "%2e%2e", "..%5csecret", "/etc", "a%00b", ".studio"])
def test_no_name_leads_out_of_the_runs(client: TestClient, name: str) -> None:
    write_run(Path("secret"))
    write_run(Path("runs/a"))
    for address in (f"/studio/runs/{name}", f"/frame/architecture/{name}"):
        assert client.get(address).status_code in (404, 405)
    assert client.post("/studio/attention", json={"model": name, "text": "once"}).status_code == 404
    assert client.post("/studio/trainings", json={"name": name, "corpus": "stories"}).status_code == 400


@pytest.mark.sampled(1)
@pytest.mark.parametrize("field", ["name", "corpus", "preset", "objective"])
def test_500_hostile_texts_start_nothing(client: TestClient, field: str) -> None:
    for text in hostile_texts():
        if field == "name" and NAME.fullmatch(text):
            continue  # as good a name as any
        fields = {"name": "x", **({} if field == "corpus" else {"text": "a"}), field: text}
        content = json.dumps(fields)
        response = client.post("/studio/trainings", content=content, headers={"content-type": "application/json"})
        assert response.status_code == 400, (text, response.text)
    assert list(Path("runs").iterdir()) == []


def test_links_out_of_the_runs_are_not_followed(client: TestClient) -> None:
    write_run(Path("outside"))
    Path("runs/linked").symlink_to(Path("outside").resolve())
    run = write_run(Path("runs/a"))
    assert [*listed(client)] == ["a"]
    assert client.get("/studio/runs/linked").status_code == 404
    for name in ("metrics.jsonl", "stop", "tokenizer.json"):
        path = run.folder / name
        kept = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.symlink_to(Path("written").resolve())
        assert client.get("/studio/runs/a").status_code == 404
        assert client.post("/studio/runs/a/stop", json={}).status_code == 404
        path.unlink()
        if kept is not None:
            path.write_bytes(kept)
    (run.folder / "metrics.jsonl").symlink_to("tokenizer.json")  # one that stays inside
    assert [*listed(client)] == ["a"]
    assert not Path("written").exists()


def test_what_the_studio_writes_follows_no_link(client: TestClient) -> None:
    Path("elsewhere").mkdir()
    Path("elsewhere/log").write_text(SECRET, encoding="utf-8")
    Path("runs/.studio").symlink_to(Path("elsewhere").resolve())
    assert client.post("/studio/trainings", json={"name": "x", "text": "ab"}).status_code == 403
    Path("runs/.studio").unlink()
    Path("runs/.studio").mkdir()
    for end in ("log", "txt"):
        Path(f"runs/.studio/x.{end}").symlink_to(Path("elsewhere/log").resolve())
    assert client.post("/studio/trainings", json={"name": "x", "text": "ab"}).status_code == 201
    assert client.post("/studio/trainings", json={"name": "x", "text": "ab"}).status_code == 409  # it runs
    assert Path("runs/.studio/x-2.txt").read_text(encoding="utf-8") == "ab"  # beside what is there
    assert Path("elsewhere/log").read_text(encoding="utf-8") == SECRET


LOGS = {
    "binary": bytes(range(256)) * 4096,
    "no end of line": b"x" * (3 << 20),
    "wrong types": b'[]\n1\nnull\n"a"\n{"kind": [], "step": 1}\n{"kind": "step", "step": "1"}\n{"kind": "start"}\n',
    "a floor that is no number": b'{"kind": "start", "step": 0, "steps": 5, "process": 1, "floor": 1e999}\n',
    "a floor that is NaN": b'{"kind": "start", "step": 0, "steps": 5, "process": 1, "floor": NaN}\n',
    "fields that nobody knows": b'{"kind": "other", "step": 1, "x": Infinity, "y": "' + b"y" * 500_000 + b'"}\n',
    "a deep one": b'{"kind": ' + b"[" * 200_000 + b"\n",
    "many digits": b'{"kind": "step", "step": ' + b"9" * 10_000 + b"}\n",
    "a sample that is no text": b'{"kind": "sample", "step": 1, "text": "a\\ud800b\\u0000"}\n',
    "a long sample": json.dumps({"kind": "sample", "step": 1, "text": "z" * 900_000}).encode() + b"\n",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_any_log_is_read_once_and_told_in_little(client: TestClient, log: bytes) -> None:
    run = write_run(Path("runs/a"))
    run.metrics.write_bytes(log + json.dumps(STEP).encode() + b"\n")
    entry = listed(client)["a"]
    assert entry["state"] == "ready"
    curve = client.get("/studio/runs/a")
    assert curve.status_code == 200
    assert len(curve.content) < 100_000
    events = client.post("/studio/runs/a/events", json={})
    assert events.status_code == 200
    for line in filter(None, events.text.split("\n\n")):
        assert len(line) < 100_000
        json.loads(line.removeprefix("data: "), parse_constant=lambda name: pytest.fail(name))
    offset = json.loads(events.text.strip().split("\n\n")[-1].removeprefix("data: "))["offset"]
    assert offset == run.metrics.stat().st_size  # what is no record is not read again and again


def test_a_huge_log_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "AT_ONCE", 1000)
    run, logs = write_run(tmp_path / "a"), Logs()
    lines = [json.dumps({**STEP, "step": step}) + "\n" for step in range(1, 101)]
    run.metrics.write_text("".join(lines), encoding="utf-8")
    reached = [logs.of(run).history.steps for _ in range(20)]
    assert reached == sorted(reached)
    assert reached[-1] == 100
    assert read_records(run, 0, 1000)[1] < 1200


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["metrics.jsonl", "clearhead.toml"])
def test_a_file_that_never_ends_is_not_opened(client: TestClient, name: str) -> None:
    run = write_run(Path("runs/a"))
    (run.folder / name).unlink(missing_ok=True)
    os.mkfifo(run.folder / name)
    assert listed(client)["a"]["state"] in ("ready", "damaged")
    assert client.get("/studio/runs/a").status_code == 200


@pytest.mark.sampled(1)
@pytest.mark.parametrize("content", [b"\0" * 100, b"x = 1\n" * 2**20, b"a." * 50_000 + b"b = 1\n", b"\xff\xfe", b""])
def test_any_options_are_a_damaged_run_and_nothing_worse(client: TestClient, content: bytes) -> None:
    write_run(Path("runs/b"))
    (write_run(Path("runs/a")).folder / "clearhead.toml").write_bytes(content)
    assert {name: entry["state"] for name, entry in listed(client).items()} == {"a": "damaged", "b": "ready"}
    for path in ("attention", "predict", "logits"):
        response = client.post(f"/studio/{path}", json={"model": "a", "text": "once"})
        assert 400 <= response.status_code < 600
        assert "traceback" not in response.text.lower()
    assert client.get("/frame/doctor/a").status_code == 400
    assert client.get("/frame/architecture/a").status_code == 400


def test_a_hundred_streams_leave_threads_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(Path("runs/a"))
    app = create_studio(ServerConfig(device="cpu", engine="eager"))
    with running_app(app) as url, ThreadPoolExecutor(100) as pool:

        def status_of(path: str, content: bytes | None = None) -> int:
            request = Request(f"{url}{path}", content, {"content-type": "application/json"})
            try:
                with urlopen(request, timeout=PATIENCE) as response:
                    response.read()
                    return int(response.status)
            except HTTPError as error:
                return error.code

        with FileLock(run.folder / ".lock"):  # as a training holds it
            streams = [pool.submit(status_of, "/studio/runs/a/events", b"{}") for _ in range(100)]
            end = time.monotonic() + PATIENCE
            while sum(stream.done() for stream in streams) < 100 - runs.STREAMS:
                assert time.monotonic() < end
                time.sleep(0.05)
            assert [status_of("/studio/runs") for _ in range(5)] == [200] * 5
        statuses = [stream.result(PATIENCE) for stream in streams]  # the training ended, and so do they
        assert sorted(statuses) == [200] * runs.STREAMS + [429] * (100 - runs.STREAMS)
        assert app.state.watched == set()


def test_pages_are_made_by_few_threads_and_few_are_kept() -> None:
    pages, may_go_on = MadeOnce(), Event()

    def slow() -> str:
        assert may_go_on.wait(60)
        return "slow"

    async def make_many() -> None:
        waiting = [asyncio.ensure_future(pages.get(number, slow)) for number in range(frames.WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(HttpError) as refusal:
            await pages.get("another", slow)
        assert refusal.value.status == 429
        assert await asyncio.to_thread(lambda: "others go on") == "others go on"
        may_go_on.set()
        assert await asyncio.gather(*waiting) == ["slow"] * frames.WAITING
        for number in range(100):
            assert await pages.get(("quick", number), lambda: "quick") == "quick"
        assert len(pages) <= frames.MOST

    asyncio.run(asyncio.wait_for(make_many(), 120))


def test_a_page_that_cannot_be_made_is_tried_again() -> None:
    pages, attempts = MadeOnce(), list[float]()

    def failing() -> str:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            raise ValueError("the first time")
        return "page"

    async def twice() -> str:
        with pytest.raises(ValueError, match="the first time"):
            await pages.get("key", failing)
        return await pages.get("key", failing)

    assert asyncio.run(twice()) == "page"
