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
from clearhead.cli.arguments import Parser
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
    for line in lines[1:3]:
        command, verb_too, *argv = shlex.split(line, comments=True)
        assert (command, verb_too) == ("clearhead", verb)
        parser_of(verb).parse(argv)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_line_of_help(verb: str) -> None:
    for action in parser_of(verb)._actions:
        assert action.help, action.dest


def test_the_first_help_names_every_verb(call: Caller) -> None:
    for argv in ([], ["--help"], ["-h"], ["help"]):
        shown = call(*argv).out
        assert all(f"  {verb} " in shown and about in shown for verb, about in VERBS.items())


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
