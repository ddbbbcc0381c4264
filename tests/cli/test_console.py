"""What is shown where: lines in a pipe; colours and bars on what is a terminal, or is said to be treated as one."""

import io
import sys

import pytest
from command_helpers import TINY, write_text

from clearhead import cli
from clearhead.cli.console import Console

AS_TERMINALS = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}


def test_a_pipe_is_told_of_every_step_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    write_text()
    assert cli.run(["train", "my.txt", *TINY]) == 0
    shown = capsys.readouterr().out
    assert all(f"step      {step}/4  loss" in shown for step in (1, 2, 3, 4))
    assert "\x1b" not in shown


@pytest.mark.parametrize("name", AS_TERMINALS)
def test_what_is_to_be_treated_as_a_terminal_gets_colours(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, AS_TERMINALS[name])
    monkeypatch.setenv("TERM", "xterm-256color")
    Console().say("well done", "green")
    assert capsys.readouterr().out == "\x1b[32mwell done\x1b[0m\n"


def test_a_bar_is_drawn_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal in (True, False):
        shown = io.StringIO()
        monkeypatch.setattr(shown, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stderr", shown)
        with Console().progress("translating") as advance:
            advance(1, 2)
        assert ("translating" in shown.getvalue()) == is_terminal
