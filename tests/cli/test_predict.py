"""`clearhead predict`, as a person uses it and as a program does."""

import csv
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from command_helpers import TINY, Caller, documented, text

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


def test_a_line_for_each_position_and_the_probabilities_of_the_next_token(call: Caller, run: str) -> None:
    code, out, err = call("predict", run, "the king", "--top-k", "3")
    assert (code, err) == (0, "")
    assert len(re.findall(r"^ +[0-7]  \S ", out, re.MULTILINE)) == 8
    assert len(re.findall(r"^ +\S  ▇* +\d+\.\d%$", out, re.MULTILINE)) == 3
    assert "\x1b" not in out
    assert "after block 0" not in out
    assert "after block 0" in call("predict", run, "the king", "--lens").out


def test_its_json_is_as_documented(call: Caller, run: str) -> None:
    prediction = call("predict", run, "the king", "--json", "--top-k", "3").json
    assert prediction.keys() == documented("predict")
    assert [position["token"] for position in prediction["positions"]] == list("the king")
    assert [position["following"] for position in prediction["positions"]] == [*"he king", None]
    bits = [position["surprisal_bits"] for position in prediction["positions"][:-1]]
    assert prediction["loss"] == pytest.approx(sum(bits) / len(bits) * math.log(2))
    assert all(len(position["top"]) == 3 for position in prediction["positions"])
    assert prediction["lens"] is None
    lens = call("predict", run, "the king", "--json", "--lens").json["lens"]
    assert [len(row) for row in lens] == [8, 8]
    assert lens[0][0].keys() == {"token", "probability", "rank"}


def test_it_writes_a_page_a_table_and_a_picture(call: Caller, run: str) -> None:
    for lens in ((), ("--lens",)):
        call("predict", run, "the king", *lens, "--report", "a.html", "--csv", "a.csv", "--svg", "a.svg")
        assert Path("a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        assert len(list(csv.reader(Path("a.csv").read_text(encoding="utf-8").splitlines(keepends=True)))) == 1 + 8 * (
            1 + len(lens)
        )
        ET.parse("a.svg")


def test_on_a_terminal_the_text_is_colored(call: Caller, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "48;2;" in call("predict", run, "the king").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;2;" not in call("predict", run, "the king", "--lens").out


def test_mistakes_are_one_sentence(call: Caller, run: str) -> None:
    for argv in (("--top-k", "0"), ("--top-k", "x"), ("--target", "the")):
        code, out, err = call("predict", run, "the king", *argv)
        assert (code, out, err.count("\n")) == (2, "", 1), argv
