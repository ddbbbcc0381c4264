"""Where pages, tables and pictures may be written: new files and their own kind, and nothing else is ever replaced."""

import os
from pathlib import Path

import pytest
from command_helpers import Caller


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def describe(call: Caller, *options: str) -> tuple[int, str]:
    called = call("describe", "--preset", "tutorial", "--by", "sublayer", *options)
    return called.code, called.err


def test_new_files_and_files_of_their_kind_are_written(call: Caller) -> None:
    for _ in range(2):
        assert describe(call, "--csv", "weights.csv", "--report", "weights.html")[0] == 0
    assert Path("weights.csv").read_text(encoding="utf-8").startswith("stack,")


def test_a_link_is_followed(call: Caller) -> None:
    Path("real.csv").write_text("old", encoding="utf-8")
    Path("link.csv").symlink_to("real.csv")
    assert describe(call, "--csv", "link.csv")[0] == 0
    assert Path("link.csv").is_symlink()
    assert Path("real.csv").read_text(encoding="utf-8").startswith("stack,")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (".", "--csv must be a file, and . is a folder"),
        ("pipe", "--csv must be a file, and pipe is a device"),
        ("config.json", "would replace config.json, which is no .csv file"),
        ("no/such/folder.csv", "is not there"),
        ("-", "--json writes to standard output"),
    ],
)
def test_nothing_else_is_replaced_and_that_is_known_before_the_work(call: Caller, name: str, sentence: str) -> None:
    os.mkfifo("pipe")
    Path("config.json").write_text("{}", encoding="utf-8")
    code, err = describe(call, "--csv", name)
    assert code == 2
    assert sentence in err
    assert Path("config.json").read_text(encoding="utf-8") == "{}"
    assert Path("pipe").is_fifo()
