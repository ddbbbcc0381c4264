"""What is shown where: lines in a pipe; colors and bars on what is a terminal, or is said to be treated as one."""

import io
import os
import shlex
import sys
from pathlib import Path
from typing import get_args

import pytest
from command_helpers import TINY, write_text
from hypothesis import given
from hypothesis import strategies as st

from clearhead import cli
from clearhead.cli.console import Console
from clearhead.cli.output import in_flags
from clearhead.data.grammar_score import GrammarScore
from clearhead.inspection import Curve
from clearhead.training import Evaluated, Stepped
from clearhead.wording import call
from clearhead.workflows import (
    CheckPassed,
    Finished,
    Notice,
    Preparing,
    Read,
    Replanned,
    Sampled,
    Started,
    WeightsAveraged,
    WorkflowEvent,
    narration,
)

AS_TERMINALS = {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}


def test_a_pipe_is_told_of_every_step_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    write_text()
    assert cli.run(["train", "my.txt", *TINY]) == 0
    shown = capsys.readouterr().out
    assert all(f"step      {step}/4  loss" in shown for step in (1, 2, 3, 4))
    assert "\x1b" not in shown


@pytest.mark.parametrize("name", AS_TERMINALS)
def test_what_is_to_be_treated_as_a_terminal_gets_colors(
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


def test_an_event_is_shown_for_what_it_is_whatever_its_class_is_called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narration, "SILENCE", 0.0)

    class Warned(Notice):
        """A kind of sentence."""

    events: list[WorkflowEvent] = [
        Warned("take care"),
        CheckPassed("all is well"),
        Preparing(0.25),
        Started(Path("runs/a"), 1, 8, None),
        Replanned(4),
        Stepped(2, 2.5, 0.001, 0.5, 64, 0.1, skipped=False),
        Evaluated(4, 1.25, 512, best=True),
        Sampled(4, "Once upon"),
        WeightsAveraged(4, 1.125, 3, used=True),
        Read(4, GrammarScore(8, 0.75, 0.5)),
        Finished(Path("runs/a"), Curve(((1, 3.0), (2, 2.5)), ((4, 1.25),), None), "it learned"),
    ]
    assert {type(event) for event in events} - {Warned} == {*get_args(WorkflowEvent)} - {Notice}
    with Console() as console:
        for event in events:
            console.on_event(event)
    shown = capsys.readouterr().out
    for part in (
        "take care",
        "all is well",
        "preparing the data: 25%",
        "after step 1 of 8",
        "4 steps fit",
        "loss 2.5",
        "1.25",
        "Once",
        "1.125",
        "it learned",
    ):
        assert part in shown


def test_a_plan_that_hardly_changes_is_not_told_again(capsys: pytest.CaptureFixture[str]) -> None:
    with Console() as console:
        console.on_event(Started(Path("runs/a"), 0, 1000, None))
        for steps in (950, 1100, 1210, 1250, 1000):
            console.on_event(Replanned(steps))
    shown = capsys.readouterr().out
    assert shown.count("than measured") == 1
    assert "faster than measured: 1,210 steps fit into the time, not 1,000" in shown


@pytest.mark.parametrize(
    ("sentence", "flags"),
    [
        ("lower `num_samples` or `max_new_tokens`", "lower --num-samples or --max-new-tokens"),
        ("raise `train.micro_batches`", "raise --train.micro_batches"),
        ("take `preset='tiny'` or `minutes=0.5`", "take --preset tiny or --minutes 0.5"),
        ("with `options={'data.tokenizer': 'a b.json'}`", "with --data.tokenizer 'a b.json'"),
        ("`ch.train()` makes one", "'clearhead train' makes one"),
        ("go on with: `ch.resume('a b')`", "go on with: clearhead resume 'a b'"),
        ("`ch.resume('a', options={'train.steps': 9})` goes on", "'clearhead resume a --train.steps 9' goes on"),
        ("with: `ch.train('my.txt', start_from='a')`", "with: clearhead train my.txt --from a"),
        ("nothing of `An Author's`, and no `", "nothing of `An Author's`, and no `"),
    ],
)
def test_arguments_are_flags_where_a_command_was_typed(sentence: str, flags: str) -> None:
    assert in_flags(sentence) == flags


@given(st.text(), st.text())
def test_a_call_with_any_name_can_be_pasted_in_python_and_in_a_shell(name: str, other: str) -> None:
    sentence = f"go on with: {call('resume', Path(name), out=other)}"
    python = sentence.removeprefix("go on with: `ch.resume").removesuffix("`")
    typed, options = eval(f"(lambda *typed, **options: (typed, options)){python}")
    assert (typed, options) == ((str(Path(name)),), {"out": other})
    if os.name != "nt":
        shell = in_flags(sentence).removeprefix("go on with: ")
        assert shlex.split(shell) == ["clearhead", "resume", str(Path(name)), "--out", other]
