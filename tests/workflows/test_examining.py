"""From what a person types to a request; the process that answers it is the doctor's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.doctor.load.naming import Target
from clearhead.errors import DataError, UsageError
from clearhead.workflows import Request, check_model
from clearhead.workflows.examining import resolve


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_folder(path: Path, age: float = 0) -> Path:
    path.mkdir(parents=True)
    (path / "clearhead.toml").write_text("")
    os.utime(path / "clearhead.toml", (1e9 - age, 1e9 - age))
    return path


def test_runs_are_found_by_folder_and_by_name(here: Path) -> None:
    run_folder(here / "runs" / "older", age=100)
    run_folder(here / "runs" / "new")
    run_folder(here / "elsewhere:1" / "mine.py")
    assert resolve(None) == Target("run", str(Path("runs", "new")))
    assert resolve("older") == Target("run", str(Path("runs", "older")))
    assert resolve("runs/older") == Target("run", str(Path("runs", "older")))
    assert resolve("elsewhere:1/mine.py") == Target("run", str(Path("elsewhere:1", "mine.py")))
    assert resolve("mine.py:build") == Target("file", "mine.py", "build")
    assert resolve("hf:old") == Target("architecture", "old")
    with pytest.raises(UsageError, match=r"'oldre' names no model; .* did you mean 'older'"):
        resolve("oldre")


def test_without_a_run_the_newest_is_none() -> None:
    with pytest.raises(DataError, match="there is no run here yet"):
        resolve(None)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("mine.py", kind="casual"), "kind 'casual' is none of"),
        (Request("mine.py", level="deeper"), "level 'deeper' is none of"),
        (Request("mine.py", only=["M1"]), "there is no check 'M1'"),
        (Request("mine.py", allow={"M1": "why"}), "there is no check 'M1'"),
        (Request("mine.py", settings={"a": "1"}), "--set is for hf:NAME only"),
        (Request("nothing"), "names no model"),
    ],
)
def test_words_are_refused_before_a_process_is_begun(
    request_: Request, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clearhead.workflows.examining.examine_isolated", None)
    with pytest.raises(UsageError, match=message):
        check_model(request_)


def test_it_loads_no_torch() -> None:
    program = (
        "import sys\n"
        "from clearhead import workflows\n"
        "from clearhead.errors import ClearheadError\n"
        "try:\n    workflows.check_model('nothing')\n"
        "except ClearheadError as error:\n    print(error)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "assert set(workflows.__all__) <= set(dir(workflows))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=100)
    assert "'nothing' names no model" in done.stdout
