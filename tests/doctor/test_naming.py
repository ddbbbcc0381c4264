"""What a person types, told apart."""

from pathlib import Path

import pytest

from clearhead.doctor.load.naming import Target, read
from clearhead.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "target"),
    [
        ("mine.py", Target("file", "mine.py")),
        ("mine.py:", Target("file", "mine.py")),
        ("mine.py:build", Target("file", "mine.py", "build")),
        ("a/b c/mine.py:build", Target("file", "a/b c/mine.py", "build")),
        ("/a.py/mine.py:build", Target("file", "/a.py/mine.py", "build")),
        (r"C:\models\mine.py:build", Target("file", r"C:\models\mine.py", "build")),
        (r"C:\models\mine.py", Target("file", r"C:\models\mine.py")),
        ("package.module:build", Target("module", "package.module", "build")),
        ("module:Class", Target("module", "module", "Class")),
        ("hf:llama", Target("architecture", "llama")),
        ("hf:absent/folder", Target("architecture", "absent/folder")),
        ("hf:mine.py:build", Target("architecture", "mine.py:build")),
    ],
)
def test_words_are_told_apart(typed: str, target: Target) -> None:
    assert read(typed) == target


def test_what_is_there_decides(here: Path) -> None:
    (here / "odd:name.py").write_text("")
    (here / "checkpoint").mkdir()
    assert read("odd:name.py") == Target("file", "odd:name.py")
    assert read("hf:checkpoint") == Target("checkpoint", "checkpoint")
    assert read(f"hf:{here / 'checkpoint'}") == Target("checkpoint", str(here / "checkpoint"))


def test_the_home_folder_is_understood(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("USERPROFILE", str(here))
    (here / "checkpoint").mkdir()
    assert read("~/mine.py:build") == Target("file", str(here / "mine.py"), "build")
    assert read("hf:~/checkpoint").kind == "checkpoint"


def test_a_run_may_have_any_name() -> None:
    runs = {"stories-1", "odd:name", "mine.py", "package.module:build", r"C:\runs\a"}

    def find(typed: str) -> Path | None:
        return Path("runs") / typed if typed in runs else None

    for name in runs:
        assert read(name, find) == Target("run", str(Path("runs") / name))
    assert read("other.py", find).kind == "file"
    assert read("hf:stories-1", find).kind == "architecture"


@pytest.mark.parametrize(
    ("typed", "error", "said"),
    [
        ("", UsageError, "names no model"),
        ("nothing", UsageError, "'nothing' names no model; say file.py:build, package.module:build, hf:NAME or a run"),
        ("package.module", UsageError, "names no model"),
        ("a b:build", UsageError, "names no model"),
        (":build", UsageError, "names no model"),
        ("hf:", UsageError, "hf: needs an architecture"),
        ("folder", DataError, r"folder is a folder and not a run; name a file in it, as in folder.model\.py:build"),
        ("weights", DataError, "'hf:weights' reads it as a checkpoint"),
        ("model.bin", DataError, "model.bin is not a Python file"),
    ],
)
def test_what_is_no_model_is_told(typed: str, error: type[Exception], said: str, here: Path) -> None:
    (here / "folder").mkdir()
    (here / "weights").mkdir()
    (here / "weights" / "config.json").write_text("{}")
    (here / "model.bin").write_bytes(b"\0")
    with pytest.raises(error, match=said):
        read(typed)
