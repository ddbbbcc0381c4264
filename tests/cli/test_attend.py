"""`clearhead attend`, as a person uses it and as a program does."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from command_helpers import TINY, Caller, documented, text, write_text

from clearhead import cli


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "my.txt").write_text(text(900), encoding="utf-8")
    assert cli.run(["train", str(folder / "my.txt"), "--out", str(folder / "run"), *TINY]) == 0
    return str(folder / "run")


def test_the_heads_are_a_table_and_one_of_them_a_map(call: Caller, run: str) -> None:
    code, out, err = call("attend", run, "the king")
    assert (code, err) == (0, "")
    assert len(re.findall(r"^ +0 +[01] +\d\.\d\d ", out, re.MULTILINE)) == 2
    code, out, err = call("attend", run, "the king", "--layer", "0", "--head", "1")
    assert (code, err) == (0, "")
    assert re.search(r"^t +100 +· +·", out, re.MULTILINE)
    assert "\x1b" not in out


def test_its_json_is_as_documented(call: Caller, run: str) -> None:
    overview = call("attend", run, "the king", "--json").json
    assert overview.keys() == documented("attend")
    assert overview["queries"] == list("the king")
    assert [(head["layer"], head["head"]) for head in overview["heads"]] == [(0, 0), (0, 1)]
    assert overview["weights"] is None
    head = call("attend", run, "the king", "--layer", "0", "--head", "1", "--json").json
    assert head["heads"] == overview["heads"][1:]
    assert [len(row) for row in head["weights"]] == [8] * 8
    assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in head["weights"])


def test_it_writes_a_page_a_table_and_a_picture(call: Caller, run: str) -> None:
    files = ("--report", "a.html", "--csv", "a.csv", "--svg", "a.svg")
    out = call("attend", run, "the king", "--layer", "0", "--head", "1", *files).out
    assert all(f"wrote a.{end}" in out for end in ("html", "csv", "svg"))
    assert Path("a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(Path("a.csv").read_text(encoding="utf-8").splitlines()) == 1 + 36
    ET.parse("a.svg")


def test_on_a_terminal_it_is_in_color_unless_that_is_not_wanted(
    call: Caller, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    head = ("attend", run, "the king goes home and", "--layer", "0", "--head", "1")
    assert "\x1b[48;2;" in call(*head).out
    monkeypatch.setenv("NO_COLOR", "1")
    plain = call(*head).out
    assert "\x1b[48" not in plain
    assert "██" in plain
    monkeypatch.setenv("COLUMNS", "20")
    assert "The first 9 of" in call(*head).out


def test_mistakes_are_one_sentence(call: Caller, run: str) -> None:
    for argv in (("--layer", "0"), ("--layer", "9", "--head", "0"), ("--layer", "x", "--head", "0"), ("--of", "cross")):
        code, out, err = call("attend", run, "the king", *argv)
        assert (code, out, err.count("\n")) == (2, "", 1), argv
    assert call("attend", run).code == 2
    assert call("attend", run, "the", "--target", "the").code == 2
    write_text()
    assert call("attend", run, "the king", "--report", "no/such/folder/a.html").code == 2
