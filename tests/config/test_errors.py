"""What IPython and notebooks show of a person's mistake."""

import linecache
from pathlib import Path

import pytest

import clearhead as ch
from clearhead.errors import ClearheadError, UsageError

CELL = "/tmp/ipykernel_1/123.py"  # of a notebook's cell, which is no file


def raised_by(source: str, monkeypatch: pytest.MonkeyPatch, file: str = CELL) -> ClearheadError:
    """What a cell's code raises, with its lines where IPython puts them."""
    monkeypatch.setitem(linecache.cache, file, (len(source), None, source.splitlines(keepends=True), file))
    with pytest.raises(ClearheadError) as error:
        exec(compile(source, file, "exec"), {"ch": ch})
    return error.value


def test_a_notebook_shows_the_persons_line_and_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised_by("text = 'no.txt'\nrun = ch.train(text, progress=False)\n", monkeypatch)
    *above, line, sentence = error._render_traceback_()
    assert line == "line 2: run = ch.train(text, progress=False)"
    assert sentence == f"DataError: {error}"
    assert all(Path(__file__).name in frame for frame in above), "no frame of the library, and none of torch"


def test_each_function_of_the_persons_own_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def read(name):\n    return ch.load(name)\n\nread('no-run')\n"
    shown = raised_by(source, monkeypatch)._render_traceback_()
    assert shown[-3:-1] == ["line 4: read('no-run')", "line 2: return ch.load(name)"]


def test_a_name_in_it_cannot_forge_a_line() -> None:
    shown = UsageError("there is no file a\n\x1b[31mb")._render_traceback_()
    assert shown == [r"UsageError: there is no file a\n\x1b[31mb"]


def test_lines_to_paste_stay_lines() -> None:
    error = UsageError("paste\nthis:", below="\na = 1\nb = 2")
    assert error._render_traceback_() == [r"UsageError: paste\nthis:", "a = 1", "b = 2"]
    assert str(error) == "paste\nthis:\na = 1\nb = 2"
