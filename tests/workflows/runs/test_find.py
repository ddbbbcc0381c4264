"""A run is found by folder and by name, and the newest without either; all are listed."""

import os
from pathlib import Path

import pytest
from workflow_helpers import empty_run, tiny, write_text

from clearhead.errors import DataError
from clearhead.workflows import list_all, load, run_and_text, train


def test_a_run_is_found_by_folder_and_name_and_the_newest_without_either() -> None:
    with pytest.raises(DataError, match="no run here yet"):
        load(None)
    old, new = empty_run("old", 100), empty_run("new", 1)
    assert load(None).folder == new.folder
    for which in ("old", "runs/old", "runs/old/", old.folder.resolve(), old):
        assert load(which).folder.resolve() == old.folder.resolve()
    os.utime(old.metrics, (2e9, 2e9))
    assert load(None).folder == old.folder


def test_what_is_no_run_is_a_sentence() -> None:
    empty_run("shakespeare-1", 0)
    with pytest.raises(DataError, match="did you mean 'shakespeare-1'"):
        load("shakespear-1")
    with pytest.raises(DataError, match="is not a run"):
        load("runs")
    with pytest.raises(DataError, match="'clearhead list' shows them"):
        load("я" * 300)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((None, None), (None, None)),
        (("a", None), ("a", None)),
        (("runs/a", None), ("runs/a", None)),
        (("runs/typo", None), ("runs/typo", None)),
        (("Once upon", None), (None, "Once upon")),
        (("", None), (None, "")),
        (("я" * 300, None), (None, "я" * 300)),
        (("x/" + "y" * 300, None), (None, "x/" + "y" * 300)),
        (("typo", "Once"), ("typo", "Once")),
    ],
)
def test_a_lone_word_is_a_run_only_if_there_is_one(
    arguments: tuple[str | None, str | None], expected: tuple[str | None, str | None]
) -> None:
    empty_run("a", 0)
    assert run_and_text(*arguments) == expected


def test_one_damaged_run_does_not_hide_the_others() -> None:
    write_text()
    train("my.txt", options=tiny(steps=2))
    (empty_run("damaged", 0).folder / "clearhead.toml").write_text("[", encoding="utf-8")
    empty_run("fresh", 0)
    lost = train("my.txt", options=tiny(steps=2))
    lines = lost.metrics.read_text(encoding="utf-8").splitlines()
    nan = '{"kind": "evaluation", "step": 2, "loss": null, "tokens": 3, "best": false}'
    lost.metrics.write_text("\n".join([*lines, nan, "5", "{"]), encoding="utf-8")
    listed = list_all().runs
    assert set(listed) == {str(Path("runs") / name) for name in ("my-1", "my-2", "damaged", "fresh")}
    assert "damaged" in listed[str(Path("runs/damaged"))]
    assert "2 of 2 steps, validation loss" in listed[str(Path("runs/my-1"))]
    assert "2 of 2 steps, validation loss" in listed[str(Path("runs/my-2"))]
