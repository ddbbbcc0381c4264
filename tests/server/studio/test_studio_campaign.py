"""Two studios in processes of their own over the same runs, and a training on texts that mean harm, all at once."""

import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError

import pytest
from child_processes import Child
from hostile_texts import hostile_texts
from run_folders import write_run

from clearhead.pages import printable
from clearhead.workflows import attend

pytestmark = pytest.mark.campaign

T = TypeVar("T")
TOKEN = "a-token-that-nobody-guesses"
PATIENCE = 240  # seconds
COMMAND = [sys.executable, "-m", "clearhead", "studio", "--no-browser", "--port", "0", "--token", TOKEN, "--json"]


class Studio:
    """A studio that runs, as its address."""

    def __init__(self, child: Child) -> None:
        child.wait_for("\n")
        self.url = json.loads(child.printed.splitlines()[0])["url"].partition("/#")[0]

    def ask(self, path: str, body: object = None) -> Any:
        """The answer to a request, which must be one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=PATIENCE) as answer:
            return json.load(answer)

    def run(self, name: str) -> dict[str, Any]:
        """What the list of runs says of one."""
        return next((run for run in self.ask("/studio/runs")["runs"] if run["name"] == name), {})


def until(look: Callable[[], T]) -> T:
    end = time.monotonic() + PATIENCE
    while not (result := look()):
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.5)
    return result


@pytest.mark.timeout(900)
def test_two_studios_and_a_training_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/writer"))
    expected = attend("writer", "once upon").weights[1].ravel().tolist()
    texts = (text.encode("utf-8", "replace").decode() for text in hostile_texts())
    text = "\n".join(texts).replace("\0", "")  # a text with a NUL is refused
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with (
        Child(COMMAND, cwd=tmp_path, env=environment) as one_child,
        Child(COMMAND, cwd=tmp_path, env=environment) as other_child,
    ):
        here, there = Studio(one_child), Studio(other_child)
        here.ask("/studio/trainings", {"name": "harm", "text": text, "minutes": 30, "preset": "tiny"})
        until(lambda: there.run("harm").get("step", 0) >= 5)  # in the studio that did not start it
        for studio in (here, there) * 5:
            cell = {"model": "writer", "text": "once upon", "layer": 1, "head": 1, "query": 3, "key": 2}
            weight = studio.ask("/studio/attention/cell", cell)["weight"]
            assert min(abs(weight - other) for other in expected) < 1e-6
            assert studio.run("harm")["state"] == "training"
        with pytest.raises(HTTPError, match="409"):
            there.ask("/studio/trainings", {"name": "harm", "text": text, "minutes": 1})
        there.ask("/studio/runs/harm/stop", {})
        until(lambda: here.run("harm")["state"] == "ready")
        curve = here.ask("/studio/runs/harm")
        assert curve == {**there.ask("/studio/runs/harm"), **{key: curve[key] for key in ("architecture", "doctor")}}
        assert all(sample["text"] == printable(sample["text"]) for sample in curve["samples"])
        assert not re.search("Traceback", json.dumps(here.ask("/studio/trainings")))
        for child in (one_child, other_child):
            child.process.send_signal(signal.SIGTERM)
            child.process.wait(timeout=PATIENCE)
