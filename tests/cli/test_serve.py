"""`clearhead serve`: what it prints works as it stands, it refuses in a sentence, and a signal ends it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import PATIENCE, Child, finish
from command_helpers import Caller

pytest.importorskip("uvicorn")
pytest.importorskip("openai")

from run_folders import LETTERS, write_run

from clearhead.data import Tokenizer

TOKEN = "correct-horse-battery"
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each kind."""
    folder, letters = tmp_path_factory.mktemp("serve"), LETTERS + "O"
    for name, objective in (("writer", "causal"), ("it's", "causal"), ("filler", "masked"), ("translator", "seq2seq")):
        tokenizer = Tokenizer.characters(letters, end=True, pad=objective != "causal", mask=objective == "masked")
        write_run(folder / "runs" / name, objective, tokenizer)
    return folder


@pytest.fixture(autouse=True)
def folder(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(runs_folder)
    return runs_folder


def serving(*argv: str, token: str | None = None) -> Child:
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), **({"CLEARHEAD_TOKEN": token} if token else {})}
    command = [sys.executable, "-m", "clearhead", "serve", *argv, "--port", "0", "--engine", "eager"]
    return Child(command, env={**os.environ, **variables})


def wait_for_object(server: Child) -> dict[str, object]:
    server.wait_for("\n")
    listening = json.loads(server.printed)
    assert isinstance(listening, dict)
    return listening


@needs_signals
@pytest.mark.parametrize(
    ("run", "token"),
    [
        ("it's", TOKEN),
        *(pytest.param(run, None, marks=pytest.mark.campaign) for run in ("writer", "filler", "translator")),
    ],
)
def test_what_it_prints_works_as_it_stands(run: str, token: str | None) -> None:
    with serving(run, token=token) as server:
        server.wait_for("curl ")
        server.wait_for("print(" if run != "translator" else "\n\n")
        server.wait_for("\n")
        lines = server.printed.decode().splitlines()
        environment = {**os.environ, **({"CLEARHEAD_TOKEN": token} if token else {})}
        curl = next(line for line in lines if line.startswith("curl "))
        if shutil.which("curl"):
            answer = subprocess.run(
                ["sh", "-c", curl], capture_output=True, text=True, timeout=PATIENCE, env=environment, check=True
            )
            assert "error" not in json.loads(answer.stdout), answer.stdout
        if run != "translator":
            program = "\n".join(lines[lines.index(curl) + 2 :])
            done = finish([sys.executable, "-c", program], env=environment)
            assert done.returncode == 0, done.stderr
            assert done.stdout
        server.send(signal.SIGTERM)
        assert server.end()[0] == 0


@pytest.mark.sampled(1)
@needs_signals
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_it_though_a_text_is_being_written(number: int, code: int) -> None:
    with serving("writer", "--json", "--shutdown-seconds", "0.5") as server:
        listening = wait_for_object(server)
        assert listening.keys() == {"url", "models", "needs_token", "curl", "openai"}
        host, port = str(listening["url"]).removeprefix("http://").split(":")
        body = json.dumps({"prompt": "the", "max_tokens": 60, "n": 8, "stream": True}).encode()
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            server.send(number)
            assert server.end() == (code, server.printed.decode(), "")


def test_what_cannot_be_served_is_a_sentence(call: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        refused = call("serve", "writer", "--port", port)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert f"--port {port} is in use" in refused.err
    for argv, code, sentence in (
        (["wirter"], 3, "did you mean 'writer'?"),
        (["writer", "--host", "0.0.0.0"], 2, "needs a --token"),
        (["writer", "--host", "nowhere.invalid", "--token", TOKEN], 2, "no address of this machine"),
        (["writer", "--host", "http://localhost"], 2, "leave out http://"),
        (["writer", "--token", "short"], 2, "at least 16 characters"),
        (["writer", "writer"], 2, "two runs are called writer"),
    ):
        refused = call("serve", *argv)
        assert (refused.code, refused.err.count("\n")) == (code, 1), argv
        assert sentence in refused.err
        assert TOKEN not in refused.err


def test_a_run_without_a_model_is_refused(call: Caller, folder: Path) -> None:
    copy = folder / "runs" / "empty"
    copy.mkdir()
    shutil.copy(folder / "runs" / "writer" / "clearhead.toml", copy)
    refused = call("serve", "empty")
    assert (refused.code, refused.err.count("\n")) == (3, 1)
    assert "has no model yet" in refused.err


def test_without_the_extra_it_says_what_to_install(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clearhead.server.serving.find_spec", lambda name: None)
    refused = call("serve", "writer", "--json")
    assert (refused.code, refused.json["exit_code"]) == (2, 2)
    assert "pip install 'clearhead[serve]'" in refused.json["error"]
