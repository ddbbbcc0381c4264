"""What a run holds is on the disk when the verb that wrote it returns, whatever pulls the plug afterwards."""

import os

import pytest
from workflow_helpers import tiny, write_text

from clearhead.workflows import Run, import_model, resume, train
from clearhead.workflows.runs.folder import LOCK

Version = tuple[int, int, int]  # inode, bytes, time of the last change: a rename leaves all three


def version(status: os.stat_result) -> Version:
    return status.st_ino, status.st_size, status.st_mtime_ns


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[Version]:
    """What files were when they were flushed."""
    versions, fsync = set[Version](), os.fsync

    def recorded(handle: int) -> None:
        fsync(handle)
        versions.add(version(os.fstat(handle)))

    monkeypatch.setattr(os, "fsync", recorded)
    return versions


def not_flushed(run: Run, flushed: set[Version]) -> list[str]:
    files = [path for path in sorted(run.folder.rglob("*")) if path.is_file() and path.name != LOCK]
    assert len(files) > 5
    return [str(path.relative_to(run.folder)) for path in files if version(path.stat()) not in flushed]


def test_every_file_of_a_training_is_flushed(flushed: set[Version]) -> None:
    write_text()
    run = train("my.txt", out="run", options=tiny(), check=False)
    assert not_flushed(run, flushed) == []
    resume(run, options={"train": {"steps": 12}})
    assert not_flushed(run, flushed) == []


def test_every_file_of_an_import_is_flushed(flushed: set[Version]) -> None:
    write_text()
    train("my.txt", out="run", options=tiny(steps=1), check=False)
    assert not_flushed(import_model("run", out="imported"), flushed) == []
