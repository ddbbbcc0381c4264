"""`clearhead doctor train`: a stranger's script, run for two steps in a process of its own, and stopped."""

import sys
from pathlib import Path
from typing import Any

import pytest
from training_loops import HOSTS, written

from clearhead.doctor.isolated import Request, examine_isolated
from clearhead.doctor.training.script import examine_script
from clearhead.errors import DataError

MAIN = """
    import os, sys
    print("{noise}")
    assert sys.argv[1] == "--in"
    os.chdir(sys.argv[2])
    try:
        train(100)
    finally:
        open("finally", "w")
"""


def test_a_script_is_stopped_before_its_third_step(tmp_path: Path) -> None:
    step = "        optimizer.step()\n"
    counted = step + "        print(step, file=open('steps', 'a'), flush=True)\n"
    path = written(tmp_path, "plain", (step, counted), ("    train()\n", MAIN))
    told = examine_isolated(Request(str(path), task="train", arguments=["--in", str(tmp_path)]), timeout=120)
    assert told["verdict"] == "healthy", told["findings"]
    assert told["findings"] == []
    assert (tmp_path / "steps").read_text(encoding="utf-8").split() == ["0", "1"]
    assert not (tmp_path / "finally").exists(), "no other line of the script may run"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in this process leaves its words and its folder behind."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


def never(told: dict[str, Any]) -> None:
    raise AssertionError(told)


BAD = {
    "raises": (
        "print('so far')\nraise ValueError('no such luck')\n",
        r"raised ValueError: no such luck, at .*:2; fix",
    ),
    "ends": ("print('nothing to do')\n", r"ended after 0 steps of an optimizer and 0 backwards"),
    "leaves": ("import sys\nsys.exit('give --data')\n", r"ended itself \(give --data\)"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.usefixtures("here")
def test_scripts_that_do_not_train_get_a_sentence(name: str, tmp_path: Path) -> None:
    code, said = BAD[name]
    path = tmp_path / f"{name}.py"
    path.write_text(code, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        examine_script(str(path), [], {}, never)


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(DataError, match=r"there is no file absent\.py"):
        examine_script("absent.py", [], {}, never)


@pytest.mark.usefixtures("here")
def test_a_loss_that_cannot_be_differentiated_is_a_finding_and_no_mishap(tmp_path: Path) -> None:
    path = written(tmp_path, "plain", ("        loss.backward()\n", "        loss.detach().backward()\n"))
    told = examine_script(str(path), ["--rate", "a b"], {}, never)
    assert [finding["id"] for finding in told["findings"]] == ["I06"]
    assert told["findings"][0]["repro"] == f"clearhead doctor train {path} -- --rate 'a b'"
    line = path.read_text(encoding="utf-8").splitlines()[told["findings"][0]["where"]["line"] - 1]
    assert "loss.detach().backward()" in line


def test_the_hosts_are_scripts() -> None:
    for host in HOSTS.glob("*.py"):
        if host.stem != "tiny_models":
            assert 'if __name__ == "__main__":\n    train()\n' in host.read_text(encoding="utf-8")
