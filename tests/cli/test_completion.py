"""What a shell is told that a word may become, and that its script asks for it."""

import argparse
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from command_helpers import Caller

from clearhead.cli import VERBS, module_of
from clearhead.cli.arguments import Parser
from clearhead.cli.candidates import candidates
from clearhead.cli.completion import SCRIPTS
from clearhead.config import PRESETS
from clearhead.files import RUN_CONFIG


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def completed(*argv: str) -> list[str]:
    return [word for word, _ in candidates(argv)]


def test_the_verbs() -> None:
    assert completed("") == [*VERBS, "help"]
    assert completed("tra") == ["train", "translate", "trace"]
    assert completed("help", "gen") == ["generate"]
    assert completed("nothing", "") == []
    assert completed() == [*VERBS, "help"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_that_help_shows(verb: str) -> None:
    parser: Parser = import_module(module_of(verb)).parser()
    shown = {
        max(action.option_strings, key=len)
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    }
    assert set(completed(verb, "--")) == shown


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["train", "--train.schedule", "c"], ["constant", "cosine"]),
        (["train", "--train.schedule=c"], ["--train.schedule=constant", "--train.schedule=cosine"]),
        (["train", "--train.schedule", "=", "c"], ["constant", "cosine"]),
        (["train", "--preset", "ti"], ["tiny"]),
        (["train", "-p", "ti"], ["tiny"]),
        (["train", "--model.bias", "sto"], ["stories"]),
        (["train", "--model.bias=t"], ["--model.bias=true"]),
        (["train", "--out", ""], []),
        (["train", "--target", ""], []),
        (["train", "sto"], ["stories"]),
        (["train", "my.txt", ""], []),
        (["resume", "--model"], []),
        (["export", "--to", ""], ["hf", "onnx", "gguf", "safetensors"]),
        (["completion", ""], list(SCRIPTS)),
    ],
)
def test_values(argv: list[str], expected: list[str]) -> None:
    assert completed(*argv) == expected


def test_presets_and_runs_are_those_that_there_are() -> None:
    assert completed("describe", "--preset", "") == list(PRESETS)
    assert completed("generate", "") == []
    for name in ("a", "b"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, RUN_CONFIG).touch()
    folders = {str(Path("runs", "a")), str(Path("runs", "b"))}
    for argv in (["generate", ""], ["generate", "--greedy", ""], ["train", "--from", ""], ["doctor", ""]):
        assert set(completed(*argv)) == folders
    assert completed("generate", "runs/a", "") == []


def test_no_heavy_library_is_loaded() -> None:
    program = (
        "import sys\n"
        "from clearhead import cli\n"
        "for argv in (['gen'], ['train', '--'], ['train', '--preset', ''], ['generate', '']):\n"
        "    assert cli.run(['completion', 'bash', '--', *argv]) == 0\n"
        "assert not {'torch', 'transformers', 'tokenizers', 'safetensors'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_as_json(call: Caller) -> None:
    assert call("completion", "zsh", "--json").json == {"script": SCRIPTS["zsh"]}
    assert call("completion", "zsh", "--json", "--", "fil").json == {"candidates": {"fill": VERBS["fill"]}}


ASK = {  # for what Tab would offer behind 'clearhead train --preset t', without a terminal
    "bash": 'COMP_WORDS=(clearhead train --preset t); COMP_CWORD=3; _clearhead; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": '_describe() { printf "%s\\n" "${(@)candidates%%:*}"; }; '
    "words=(clearhead train --preset t); CURRENT=4; _clearhead",
    "fish": 'complete -C "clearhead train --preset t" | string split -f1 \\t',
}


@pytest.mark.skipif(sys.platform == "win32", reason="writes a command as a shell script")
@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_completes_in_its_shell(shell: str, call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"needs {shell}")
    command = Path("bin/clearhead").absolute()  # what the script finds on the path is this library
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clearhead "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    begin = "compdef() { :; }; " if shell == "zsh" else ""  # zsh has it once completion is turned on
    line = f"{begin}source {Path('script').absolute()}; {ASK[shell]}"
    Path("script").write_text(call("completion", shell).out, encoding="utf-8")
    done = subprocess.run([program, "-c", line], capture_output=True, text=True, timeout=100)
    assert done.stderr == ""
    assert sorted(done.stdout.split()) == sorted(name for name in PRESETS if name.startswith("t"))
