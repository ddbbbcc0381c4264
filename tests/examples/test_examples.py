"""The examples run as they stand, and are short."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_under_forty_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40


def test_train_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "counting.txt"
    text.write_text("Once: one two three four five six seven eight nine ten\n" * 40, encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["train_and_write.py", str(text), "5"])
    runpy.run_path(str(EXAMPLES / "train_and_write.py"))
    printed = capsys.readouterr().out
    assert "nats per token" in printed
    assert "\nOnce" in printed


def test_own_loop_learns_to_count(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_loop.py"))
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < 0.2 < losses[0]


def test_own_translator_learns_to_write_backwards(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_translator.py"))
    assert capsys.readouterr().out.startswith("[2, 9, 3, 5] ")
