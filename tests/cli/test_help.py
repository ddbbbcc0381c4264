"""Help, and the list of options, which does not change by accident."""

import shlex
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from child_processes import finish
from command_helpers import TINY, Caller, write_text
from hypothesis import given
from hypothesis import strategies as st

from clearhead.cli import VERBS, module_of
from clearhead.cli.arguments import SHORT, Parser
from clearhead.cli.help_text import WIDEST
from clearhead.errors import UsageError

FROZEN = Path(__file__).with_name("options.txt")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@cache
def parser_of(verb: str) -> Parser:
    parser = import_module(module_of(verb)).parser()
    assert isinstance(parser, Parser)
    return parser


def options() -> list[str]:
    return [
        f"{verb} {option}"
        for verb in VERBS
        for action in parser_of(verb)._actions
        for option in action.option_strings or [f"[{action.dest}]"]
    ]


def test_the_options_are_those_that_were_decided() -> None:
    """A new option is a promise. To make it, write it into options.txt; to break one, take it out."""
    assert options() == FROZEN.read_text(encoding="utf-8").splitlines()


def test_no_option_twice() -> None:
    assert len(set(options())) == len(options())


@pytest.mark.parametrize("verb", VERBS)
def test_help_begins_with_two_examples_that_can_be_parsed(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser_of(verb).parse(["--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Examples:"
    examples = [line for line in lines if line.startswith("  clearhead ")]
    assert len(examples) >= 2
    for line in examples[:2]:
        command, verb_too, *argv = shlex.split(line, comments=True)
        assert (command, verb_too) == ("clearhead", verb)
        parser_of(verb).parse(argv)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_line_of_help(verb: str) -> None:
    for action in parser_of(verb)._actions:
        assert action.help, action.dest


def test_the_first_help_names_every_verb(call: Caller) -> None:
    for argv in ([], ["--help"], ["-h"], ["help"]):
        shown = " ".join(call(*argv).out.split())
        assert all(f" {verb} {about}" in shown for verb, about in VERBS.items())


@pytest.mark.sampled
@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("verb", [*VERBS, None])
def test_help_fits_the_terminal(verb: str | None, columns: int, call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = call("help", *filter(None, [verb])).out
    examples = [line for line in shown.splitlines() if line.startswith("  clearhead ")]  # are not cut, to be pasted
    wide = [line for line in shown.splitlines() if len(line) > min(columns, WIDEST) and line not in examples]
    assert not wide
    assert shown.startswith("Examples:" if verb else "Clearhead:")


def test_help_of_a_verb_however_it_is_asked_for(call: Caller) -> None:
    calls = (["help", "resume"], ["--help", "resume"], ["resume", "--help"], ["resume", "-h"])
    assert len({call(*argv) for argv in calls}) == 1
    assert call("help", "resume").code == 0


def test_the_help_of_resume_lists_what_a_run_can_change(call: Caller) -> None:
    shown = call("help", "resume").out
    assert "--train.steps N" in shown
    assert "--train.device" in shown
    for fixed in ("--model.", "--data.", "--seed", "--objective", "--train.optimizer", "default: 2000"):
        assert fixed not in shown


def test_help_says_the_default_and_how_to_leave_it(call: Caller) -> None:
    shown = " ".join(call("help", "train").out.split())
    assert "attend to the last N tokens only; none: to all (default: none)" in shown
    assert "(default: true; off: --no-model.tie_embeddings)" in shown
    assert "-o, --out FOLDER" in shown


@pytest.mark.parametrize("flag", SHORT)
def test_a_letter_is_its_flag_in_every_verb_that_has_it(flag: str) -> None:
    verbs = [verb for verb in VERBS if any(flag in action.option_strings for action in parser_of(verb)._actions)]
    assert verbs
    value = "7"
    for verb in verbs:
        required = ["x"] * any(action.required for action in parser_of(verb)._actions)
        long, short = (parser_of(verb).parse([*required, name, value]) for name in (flag, SHORT[flag]))
        assert long == short


def test_the_module_is_the_command() -> None:
    shown = finish([sys.executable, "-m", "clearhead", "--version"], check=True)
    assert shown.stdout.startswith("clearhead ")


def test_help_loads_no_torch() -> None:
    program = (
        "import sys\n"
        "from clearhead import cli\n"
        "assert cli.run(['--help']) == cli.run(['--version']) == 0\n"
        "for verb in cli.VERBS:\n"
        "    try: cli.run([verb, '--help'])\n"
        "    except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'transformers', 'tokenizers', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_no_verb_loads_what_it_does_not_need() -> None:
    """Torch's compiler takes seconds, which every start would cost; a pipe has no use for what draws on a terminal."""
    program = (
        "import sys\n"
        "from clearhead import cli\n"
        f"assert cli.run({['train', str(write_text()), *TINY]!r}) == 0\n"
        "assert cli.run(['generate', 'the', '--max-new-tokens', '2']) == cli.run(['evaluate']) == 0\n"
        "needless = {'torch._dynamo', 'sympy', 'rich', 'clearhead.data.pairs'} & set(sys.modules)\n"
        "assert not needless, needless\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


WORDS = st.lists(
    st.sampled_from(
        [
            "a.txt",
            "-",
            "--json",
            "--model.tie_embeddings",
            "--no-model.tie_embeddings",
            "false",
            "--train.steps",
            "5",
            "--",
        ]
    )
    | st.text(max_size=5),
    max_size=6,
)


@given(argv=WORDS)
def test_whatever_is_typed_is_understood_or_refused(argv: list[str]) -> None:
    if {"-h", "--help"} & set(argv):
        return
    for verb in VERBS:
        with suppress(UsageError):
            parser_of(verb).parse(argv)
