"""Texts and names that would command a terminal: every verb shows them, none sends them. A pipe gets the exact text."""

import io
import json
import os
import re
import sys
import warnings
from pathlib import Path

import pytest
from child_processes import finish
from command_helpers import TINY, Caller, write_text

from clearhead import cli
from clearhead.cli.output import json_line
from clearhead.pages import CONTROLS, one_line, printable

HOSTILE = "\x1b]0;owned\x07\x1b[31m \x9b2J \u202egnp\u2066 \u2028\u2029 \x7f\r"
UNSAFE = {chr(code) for code in CONTROLS} - set("\n\t")


class Terminal(io.StringIO):
    """What is printed to it would be seen, and obeyed."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def obeyed(shown: str) -> set[str]:
    """What a terminal would do of it, but for our own colors and bars."""
    ours = re.compile(r"\x1b\[[0-9;]*[mKAG]|\x1b\[\?25[lh]|\r(?=\x1b\[)|\x1b\[1A")
    return set(ours.sub("", shown)) & UNSAFE


def shown_on_terminal(monkeypatch: pytest.MonkeyPatch, *argv: str) -> tuple[int, str]:
    """Both streams are one terminal."""
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        code = cli.run(list(argv))
    return code, terminal.getvalue()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trained runs in it whose texts, names and vocabularies are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    name = "runs/new\nline\x1b[31m\u202e"
    source = folder / "my\x1b]0;t\x07.txt"
    source.write_text((HOSTILE + "the king\n") * 60, encoding="utf-8", newline="")
    pairs = folder / "pairs.tsv"
    lines = [f"ein \x1b[31m{number % 97} Haus\ta \u202e\x9b31m house {number}" for number in range(300)]
    pairs.write_text("\n".join(lines), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.run(["train", source.name, "--out", name, *TINY]) == 0
        assert cli.run(["train", source.name, "--out", "runs/masked", "--objective", "masked", *TINY]) == 0
        assert cli.run(["train", "pairs.tsv", "--out", "runs/pairs", *TINY]) == 0
    return folder


VERBS = {
    "generate": ["generate", "runs/new\nline\x1b[31m\u202e", "", "--seed", "1", "--max-new-tokens", "200"],
    "several": ["generate", "runs/new\nline\x1b[31m\u202e", "", "--num-samples", "2", "--max-new-tokens", "100"],
    "fill": ["fill", "runs/masked", "the\x1b[31m\x07 [MASK]ing \u202e"],
    "translate": ["translate", "runs/pairs", "ein \x1b[31m Haus \u202e", "--alignment"],
    "list": ["list"],
    "list as JSON": ["list", "--json"],
    "describe": ["describe", "runs/new\nline\x1b[31m\u202e"],
    "trace": ["trace", "runs/new\nline\x1b[31m\u202e", "the\x1b[31m king \u202e"],
    "trace a translator": ["trace", "runs/pairs", "ein \x1b[31m Haus \u202e"],
    "trace as JSON": ["trace", "runs/new\nline\x1b[31m\u202e", "the\x1b[31m king \u202e", "--json"],
    "evaluate": ["evaluate", "runs/masked"],
    "train": ["train", "my\x1b]0;t\x07.txt", "--train.eval_every", "1", *TINY],
    "the options": ["train", "my\x1b]0;t\x07.txt", "--print-config"],
    "no such file": ["train", "no\x1b[31m\nsuch\u202e.txt"],
    "no such run": ["generate", "runs/\x1b[31m\n\u202e", "x"],
    "no such option": ["train", "--\x1b[31m\n\x9b"],
    "no such verb": ["tr\x1b[31m\nain"],
    "a mistake as JSON": ["train", "no\x1b[31m\x9b\u202e.txt", "--json"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_sends_a_terminal_what_it_would_obey(verb: str, hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    _, shown = shown_on_terminal(monkeypatch, *VERBS[verb])
    assert shown
    assert not obeyed(shown), ascii(shown)
    assert "\x1b]" not in shown
    assert "\x1b[31m" not in shown, "a text's color, which is none of ours"


@pytest.mark.parametrize("verb", ["no such file", "no such run", "no such option", "no such verb"])
def test_a_mistake_is_one_line_whatever_is_in_the_name(verb: str, hostile: Path, call: Caller) -> None:
    done = call(*VERBS[verb])
    assert done.err.count("\n") == 1
    assert "\\n" in done.err
    assert "\\x1b" in done.err


def test_a_table_has_a_line_for_each_name(hostile: Path, call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    shown = call("list").out
    assert any(line.startswith(r"  runs/new\nline\x1b[31m\u202e ") for line in shown.split("\n"))
    assert "runs/new\nline\x1b[31m\u202e" in call("list", "--json").json["runs"]


def test_a_pipe_gets_the_exact_text(hostile: Path, call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    exact = call(*VERBS["generate"], "--json").json["texts"][0]
    assert set(exact) & UNSAFE
    assert call(*VERBS["generate"]).out == exact + "\n"
    assert shown_on_terminal(monkeypatch, *VERBS["generate"])[1].startswith(printable(exact)[:100])
    filled = call(*VERBS["fill"])
    assert filled.out.startswith("the\x1b[31m\x07 ")


def test_the_samples_of_a_training_are_printable_in_a_pipe_as_well(
    hostile: Path, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    shown = call(*VERBS["train"])
    assert not set(shown.out + shown.err) & UNSAFE


def test_what_others_print_is_printable_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from clearhead.cli import command

    def noisy(argv: list[str]) -> int:
        print(HOSTILE)
        sys.stderr.write(HOSTILE)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            monkeypatch.setattr(warnings, "showwarning", lambda message, *_: sys.stderr.write(f"{message}\n"))
            warnings.warn(HOSTILE, stacklevel=1)
        return 0

    monkeypatch.setattr(command, "_dispatch", noisy)
    assert not set(shown_on_terminal(monkeypatch, "anything")[1]) & UNSAFE


@pytest.mark.parametrize("value", [HOSTILE, "\ud800", "".join(map(chr, CONTROLS)), "", "ä 日本 🙂 \u200d"])
def test_the_functions_between_a_text_and_a_terminal(value: str) -> None:
    for function in (printable, one_line):
        safe = function(value)
        safe.encode("utf-8")
        assert not set(safe) & UNSAFE
        assert function(safe) == safe
    assert "\n" not in one_line(value)
    line = json_line({"value": value})
    assert not set(line[:-1]) & {chr(code) for code in CONTROLS}
    assert json.loads(line.encode("utf-8").decode("utf-8")) == {"value": value}


@pytest.mark.skipif(os.name == "nt", reason="names of POSIX are bytes")
@pytest.mark.parametrize(
    "argv",
    [
        *(["train", b"\xff.txt"], ["train", "my.txt", "--out", b"\xff"], ["train", b"--data.source=\xff"]),
        *(["generate", b"\xff", "x"], ["evaluate", b"\xff"], ["describe", b"\xff"], ["import", b"\xff"]),
        *(["export", b"\xff", "--to", "hf", b"\xfe"], ["doctor", b"\xff.py:build"], [b"\xff"], ["list", b"\xff"]),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_name_that_is_not_utf_8_is_a_sentence(argv: list[str | bytes], form: list[str], call: Caller) -> None:
    done = call(*map(os.fsdecode, argv), *form)
    assert done.code == 2
    sentence = done.json["error"] if form else done.err.removesuffix("\n")
    assert "\n" not in sentence
    assert "is not UTF-8" in sentence
    assert not form or (done.json["exit_code"], done.err) == (2, "")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_run_whose_name_is_not_utf_8_is_listed(call: Caller) -> None:
    folder = Path("runs") / os.fsdecode(b"\xffrun")
    folder.mkdir(parents=True)
    (folder / "clearhead.toml").touch()
    assert r"runs/\udcffrun" in call("list").out
    assert os.fspath(folder) in call("list", "--json").json["runs"]


CLOSED = [">&-", "2>&-", ">&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full", "<&-"]
PLAIN = ["--help", "--version", "train --help", "nonsense", "nonsense --json", "doctor explain M01"]


@pytest.mark.sampled(2)
@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize("stream", CLOSED)
def test_a_stream_that_is_closed_or_full_is_a_sentence(stream: str) -> None:
    lost_output = stream.startswith(">")
    for line in PLAIN[:4]:
        done = finish(["sh", "-c", f'exec "$0" -m clearhead {line} {stream}', sys.executable])
        assert done.returncode == (2 if "nonsense" in line else 1 if lost_output else 0), (line, done)
        assert "Traceback" not in done.stderr
        sentences = [s for s in done.stderr.splitlines() if s]
        expected = "2>" not in stream and (lost_output or "nonsense" in line)
        assert len(sentences) == expected, (line, done.stderr)


@pytest.mark.sampled(1)
@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize(
    ("stream", "code", "message", "is_trained"),
    [
        (">&-", 0, "standard output is closed, so nothing of the training is shown", True),
        pytest.param(">&- 2>&-", 0, "", True, marks=pytest.mark.campaign),
        pytest.param("2>/dev/full", 0, "", True, marks=pytest.mark.campaign),
        (">/dev/full", 1, "standard output cannot be written (No space left on device)", False),
        pytest.param("--json >&-", 1, "standard output cannot be written", True, marks=pytest.mark.campaign),
    ],
)
def test_a_training_with_a_stream_that_is_closed_or_full(
    stream: str, code: int, message: str, is_trained: bool
) -> None:
    write_text()
    argv = ["train", "my.txt", "--out", "run", *TINY]
    done = finish(["sh", "-c", f'exec "$0" -m clearhead "$@" {stream}', sys.executable, *argv])
    assert done.returncode == code, done
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert Path("run/model.safetensors").exists() == is_trained
    if is_trained:
        assert not any(b"clearhead:" in path.read_bytes() for path in Path("run").rglob("*") if path.is_file())


@pytest.mark.campaign
def test_a_resumed_training_whose_output_is_full_stops_and_saves() -> None:
    write_text()
    assert cli.run(["train", "my.txt", "--out", "run", *TINY]) == 0
    argv = ["resume", "run", "--train.steps", "100000"]
    done = finish(["sh", "-c", 'exec "$0" -m clearhead "$@" >/dev/full', sys.executable, *argv])
    assert done.returncode == 130
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr
    assert "everything is saved; go on with: clearhead resume run" in done.stderr
