"""The commands behind 'What you can do next' can be pasted as they are, and are about the run's own data."""

import shlex
from pathlib import Path

import pytest
from command_helpers import QUICK, SMALL, Caller, write_text

from clearhead.workflows.events import command
from clearhead.workflows.tasks.typed import easily_typed, gaps

SENTENCES = [
    "the dog sees the house",
    "-a child",
    "it's a cat",
    "a bird finds the tree",
    "one cat likes a dog",
    "hello",
]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


def next_command(call: Caller, *argv: str) -> list[str]:
    """The first command that a training ends with, as a shell reads it."""
    trained = call("train", *argv, *SMALL, *QUICK, "--model.block_size", "24")
    assert trained.code == 0, trained.err
    line = trained.out.split("What you can do next:\n")[1].splitlines()[0]
    return shlex.split(line)[1:]


def test_a_translator_gets_a_sentence_of_its_source_language(call: Caller) -> None:
    rows = [(f"{sentence} {count}", "ein Hund") for count in range(20) for sentence in SENTENCES]
    Path("my.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in rows), encoding="utf-8")
    verb, run, sentence = next_command(call, "my.tsv", "--data.bpe_vocab_size", "280")
    assert verb == "translate"
    assert sentence in [source for source, _ in rows]
    assert call(verb, run, sentence).code == 0


def test_an_encoder_gets_a_line_of_its_text(call: Caller) -> None:
    text = write_text(2000).read_text(encoding="utf-8")
    verb, run, line = next_command(call, "my.txt", "--objective", "masked")
    before, mask, after = line.partition("[MASK]")
    assert (verb, mask) == ("fill", "[MASK]")
    assert before.split()[-1] in text.split()
    assert after.split()[0] in text.split()
    assert call(verb, run, line).code == 0


def test_a_writer_goes_on(call: Caller) -> None:
    write_text()
    assert call(*next_command(call, "my.txt"), "--max-new-tokens", "2").code == 0


def test_only_what_no_shell_and_no_parser_reads_otherwise_is_typed() -> None:
    refused = ["", " ", "-a", "it's", 'say "so"', "a\nb", "\x1b[31mred", "$HOME", "`ls`", "back\\slash", "100 %", "!x"]
    assert easily_typed([*refused, "x" * 61]) is None
    assert easily_typed([*refused, " Grüße, Welt? ", "later"]) == "Grüße, Welt?"


def test_a_gap_is_in_the_middle_of_a_line() -> None:
    text = "t off line here\none two three four five six seven eight\ntwo words\na [MASK] is here"
    assert list(gaps(text)) == ["one two three [MASK] five six seven", "t off [MASK] here"]
    assert list(gaps("")) == []


def test_any_argument_survives_the_shell() -> None:
    arguments = ["it's", "$HOME", "a b", ""]
    assert shlex.split(command("fill", Path("a run"), *arguments)) == ["clearhead", "fill", "a run", *arguments]
