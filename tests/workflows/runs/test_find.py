"""A run is found by folder and by name, and the newest without either; all are listed."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from filelock import FileLock
from workflow_helpers import empty_run, tiny, trained, write_text

from clearhead.errors import DataError
from clearhead.workflows import Run, examining, generate, list_all, load, newest_run, run_and_text, train
from clearhead.workflows.runs.folder import LOCK


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
    with pytest.raises(
        DataError, match=r"^there is no run 'я+\.\.\. \(302 characters\); the runs here are shakespeare-1$"
    ):
        load("я" * 300)


def test_where_there_is_no_run_the_sentence_says_what_makes_one() -> None:
    for which, sentence in ((None, "there is no run here yet"), ("a", "there is no run 'a', and none here yet")):
        with pytest.raises(DataError, match=rf"^{sentence}; `ch\.train\(\)` makes one$"):
            load(which)


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


def begun(name: str, like: Run, age: float = 0) -> Run:
    """A run whose training has just begun, and has saved nothing."""
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    for file in ("clearhead.toml", "text.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(like.folder / file, folder / file)
    (folder / "metrics.jsonl").touch()
    os.utime(folder / "metrics.jsonl", (2e9 - age, 2e9 - age))
    return Run(folder)


def test_the_newest_run_is_one_that_has_a_model() -> None:
    usable = trained("runs/a")
    beginning, broken = begun("b", usable), empty_run("c", -2e9)
    assert load(None).folder == newest_run().folder == usable.folder
    assert generate(None, "the", max_new_tokens=1, seed=1)
    assert newest_run(to_resume=True).folder == beginning.folder
    assert check_target() == str(usable.folder)
    shutil.rmtree(usable.folder)
    assert newest_run().folder == broken.folder, "the verb says what is wrong with it"


def check_target() -> str:
    """What the doctor examines where nothing is named."""
    return examining.resolve(None).location


def test_a_run_that_is_just_beginning_is_not_called_damaged() -> None:
    usable = trained("runs/a")
    beginning = begun("b", usable)
    with pytest.raises(DataError, match="runs/b has no model yet"):
        beginning.model()
    for name in ("manifest.json", "config.json"):  # the first model is being put there, file by file
        shutil.copy(usable.folder / name, beginning.folder / name)
    with pytest.raises(DataError, match=r"runs/b is damaged: .* is missing"):
        beginning.model()
    with beginning.locked(), pytest.raises(DataError, match="runs/b has no model yet"):
        beginning.model()
    (usable.folder / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"runs/a is damaged: manifest\.json is missing"):
        usable.model()


def test_whoever_looks_whether_a_training_goes_on_does_not_stop_it() -> None:
    run = begun("b", trained("runs/a"))
    with FileLock(run.folder / LOCK):
        assert run.is_training
    assert not run.is_training
    looking = FileLock(run.folder / LOCK, thread_local=False)
    looking.acquire()
    threading.Timer(0.1, looking.release).start()
    with run.locked():
        assert run.is_training


def test_the_list_says_what_each_run_is() -> None:
    """One that was stopped was listed as if it had been meant to end there."""
    run = trained("runs/a")
    assert list_all().runs["runs/a"].startswith("9 of 9 steps, validation loss ")
    with run.locked():
        assert list_all().runs["runs/a"].startswith("in training: 9 of 9 steps, validation loss ")
    begun("b", run)
    assert list_all().runs["runs/b"] == "interrupted after 0 of 9 steps; `ch.resume('runs/b')` goes on"
