"""The folder of a new run: claimed, and never written over."""

from pathlib import Path
from typing import Any

import pytest
from workflow_helpers import empty_run, tiny, trained, write_text

from clearhead.errors import ClearheadError, DataError, FaultError, UsageError
from clearhead.workflows import train
from clearhead.workflows.runs.create import create
from clearhead.workflows.tasks import CausalTask


def test_every_new_run_has_a_folder_of_its_own() -> None:
    created = [create(None, "a") for _ in range(3)] + [create(None, "b")]
    assert [run.name for run, _ in created] == ["a-1", "a-2", "a-3", "b-1"]
    assert all(is_new for _, is_new in created)


def test_only_who_made_a_folder_may_take_it_away() -> None:
    assert create(Path("x/y"), "")[1]
    assert not create(Path("x/y"), "")[1]


def test_nothing_is_written_over() -> None:
    full = Path("full")
    full.mkdir()
    (full / "config.json").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="not empty"):
        trained("full")
    assert [path.name for path in full.iterdir()] == ["config.json"]
    empty_run("a", 0)
    with pytest.raises(UsageError, match="already holds a run"):
        trained("runs/a")


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_file_in_the_way_is_a_sentence(folder: str) -> None:
    Path("file").touch()
    with pytest.raises(ClearheadError, match=f"cannot be made in {folder}"):
        trained(folder)


def test_a_training_that_never_began_leaves_no_folder() -> None:
    Path("empty.txt").touch()
    for out in (None, "new"):
        with pytest.raises(DataError, match="empty"):
            train("empty.txt", out=out, options=tiny())
    assert not Path("new").exists()
    assert not list(Path("runs").iterdir())


def test_a_folder_that_was_there_stays() -> None:
    Path("empty.txt").touch()
    Path("old").mkdir()
    with pytest.raises(DataError):
        train("empty.txt", out="old", options=tiny())
    assert Path("old").is_dir()
    write_text()
    assert trained("old").generate("the", max_new_tokens=1)


def test_a_training_that_never_began_leaves_a_folder_of_ones_own_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the same command works once what was wrong is mended."""
    write_text()
    Path("mine").mkdir()

    def broken(*_: Any, **__: Any) -> Any:
        raise FaultError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(CausalTask, "preflight", broken)
        with pytest.raises(FaultError):
            train("my.txt", out="mine", options=tiny(steps=2))
    assert {path.name for path in Path("mine").iterdir()} <= {".lock"}
    train("my.txt", out="mine", options=tiny(steps=2))


@pytest.mark.parametrize(
    "left",
    [
        [".lock"],
        [".lock", ".unfinished-text.json"],
        [".lock", "text.json"],
        [".lock", "text.json", ".unfinished-tokenizer/tokenizer.json"],
        [".lock", "text.json", "tokenizer.json", ".unfinished-tokenizer/tokenizer_config.json"],
        [".lock", "text.json", "tokenizer.json", "tokenizer_config.json", ".unfinished-clearhead.toml"],
    ],
)
def test_a_run_that_a_crash_ended_before_it_began_begins_again(
    left: list[str], undisturbed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    for name in left:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{", encoding="utf-8")  # cut off
    again = trained(str(folder))
    for name in ("tokenizer.json", "tokenizer_config.json", "text.json", "model.safetensors"):
        assert (again.folder / name).read_bytes() == (undisturbed / name).read_bytes()


@pytest.mark.parametrize("name", ["tokenizer.json", "notes.txt", "model.safetensors"])
def test_a_folder_with_something_of_a_persons_own_is_left_alone(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="is not empty"):
        trained(str(folder))
    assert (folder / name).read_text(encoding="utf-8") == "mine"
