"""A text that is piped in, and a text without quotes: what a shell makes of them, and that nothing waits for ever."""

import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from command_helpers import TINY, Caller, write_text

from clearhead import cli
from clearhead.cli import standard_input
from clearhead.cli.standard_input import piped_text
from clearhead.errors import DataError, UsageError

LONG = 60.0  # seconds: what never comes within them is not waited for


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a trained model, which no test changes."""
    folder = tmp_path_factory.mktemp("writer")
    text = write_text(name=str(folder / "my.txt"))
    assert cli.run(["train", str(text), "--out", str(folder / "run"), *TINY]) == 0
    return str(folder / "run")


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[IO[bytes]]:
    """The end of standard input into which somebody may write."""
    end, other_end = os.pipe()
    with os.fdopen(end) as stream, os.fdopen(other_end, "wb", buffering=0) as writer:
        monkeypatch.setattr(sys, "stdin", stream)
        yield writer


def send(pipe: IO[bytes], *pieces: bytes) -> None:
    for piece in pieces:
        pipe.write(piece)
    pipe.close()


def test_what_is_piped_in_is_the_prompt(call: Caller, run: str, pipe: IO[bytes]) -> None:
    send(pipe, b"the king\n")
    assert call("generate", run, "--max-new-tokens", "2", "--json").json["prompt"] == "the king"


def test_an_argument_is_the_prompt_whatever_is_piped_in(call: Caller, run: str, pipe: IO[bytes]) -> None:
    send(pipe, b"the king\n")
    for prompt in ("a queen", ""):
        assert call("generate", run, prompt, "--max-new-tokens", "2", "--json").json["prompt"] == prompt
    assert os.read(sys.stdin.fileno(), 99) == b"the king\n", "it is somebody else's"


@pytest.mark.parametrize("verb", ["attend", "predict"])
def test_whatever_reads_a_text_reads_it_from_a_pipe(verb: str, call: Caller, run: str, pipe: IO[bytes]) -> None:
    send(pipe, b"the king\n")
    assert call(verb, run, "--json").code == 0


def test_a_file_is_read_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, text in (("the king\r\n", "the king"), ("two\nlines\n\n", "two\nlines\n"), ("", None), ("\n", None)):
        Path("in.txt").write_bytes(content.encode())
        with Path("in.txt").open(encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert piped_text("prompt") == text


def test_an_empty_pipe_is_no_text(call: Caller, run: str, pipe: IO[bytes]) -> None:
    """As cron and services have it."""
    pipe.close()
    code, _, err = call("generate", run, "--max-new-tokens", "2")
    assert (code, err) == (0, "")


def test_nothing_waits_for_a_pipe_into_which_nobody_writes(
    call: Caller, run: str, pipe: IO[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a job in the background may inherit one."""
    monkeypatch.setattr(standard_input, "SOON", 0.05)
    monkeypatch.setattr(standard_input, "WHOLE", LONG)
    code, _, err = call("generate", run, "--max-new-tokens", "2")
    assert code == 0
    assert err == (
        "clearhead: nothing comes from standard input, so it is left alone; give - as the prompt to wait for it\n"
    )


def test_a_pipe_that_does_not_end_is_refused(pipe: IO[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_input, "WHOLE", 0.05)
    pipe.write(b"the king")
    with pytest.raises(UsageError, match=r"^standard input does not end; give - as the prompt to wait for it, or < "):
        piped_text("prompt")


def test_a_pipe_that_never_ends_is_refused(pipe: IO[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of `yes` does."""
    monkeypatch.setattr(standard_input, "MOST", 100)
    send(pipe, b"y\n" * 51)
    with pytest.raises(UsageError, match="more than 100 bytes"):
        piped_text("prompt")


def test_a_writer_may_take_a_moment_and_several_pieces(pipe: IO[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_input, "SOON", LONG)
    monkeypatch.setattr(standard_input, "WHOLE", LONG)
    writer = threading.Timer(0.05, lambda: send(pipe, b"the k\xc3", b"\xadng\n"))
    writer.start()
    try:
        assert piped_text("prompt") == "the kíng"
    finally:
        writer.join(LONG)


def test_a_socket_is_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a remote shell has it."""
    ours, theirs_end = socket.socketpair()
    with ours, theirs_end, os.fdopen(os.dup(ours.fileno())) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        theirs_end.sendall(b"the king")
        theirs_end.shutdown(socket.SHUT_WR)
        assert piped_text("prompt") == "the king"


def test_no_device_and_no_closed_stream_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing, open("/dev/zero") as endless:
        for stream in (nothing, endless, None):
            monkeypatch.setattr(sys, "stdin", stream)
            assert piped_text("prompt") is None
    monkeypatch.setattr(sys, "stdin", nothing)  # closed by now
    assert piped_text("prompt") is None


def test_bytes_that_are_no_text_are_named(pipe: IO[bytes]) -> None:
    send(pipe, b"the \xff")
    with pytest.raises(DataError, match="the prompt on standard input is not UTF-8 at byte 4"):
        piped_text("prompt")


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        (("generate", "Once", "upon", "a", "time"), "clearhead generate 'Once upon a time'"),
        (("generate", "Once", "upon"), "clearhead generate 'Once upon'"),
        (("generate", "RUN", "it's", "so", "--seed", "1"), """clearhead generate RUN 'it'"'"'s so'"""),
        (("translate", "ein", "kind", "spielt", "--beam-size", "1"), "clearhead translate 'ein kind spielt'"),
        (("translate", "ein", "kind"), "clearhead translate 'ein kind'"),
        (("fill", "to", "be", "or"), "clearhead fill 'to be or'"),
        (("attend", "runs/gone", "to", "be"), "clearhead attend runs/gone 'to be'"),
        (("predict", "to", "be", "--top-k", "3"), "clearhead predict 'to be'"),
    ],
)
def test_a_text_without_quotes_is_noticed(typed: tuple[str, ...], command: str, call: Caller, run: str) -> None:
    code, out, err = call(*(run if word == "RUN" else word for word in typed))
    assert code in (2, 3)
    assert out == ""
    assert err.endswith(f"; a text of several words goes in quotes: {command.replace('RUN', run)}\n")


def test_a_run_that_is_not_there_is_no_text(call: Caller) -> None:
    """Nor are files; and a single word has no quotes to lack."""
    assert "in quotes" not in call("generate", "runs/gone", "Once").err
    assert "in quotes" not in call("evaluate", "gone", "a.txt", "b.txt").err
    Path("folder").mkdir()
    assert "folder is not a run" in call("generate", "folder", "Once").err


def test_a_text_before_its_run_is_told_the_order(call: Caller, run: str) -> None:
    shutil.copytree(run, "runs/letters-1")
    for name in (run, "letters-1"):
        err = call("predict", "Once", name).err
        assert err.endswith(f"; the run comes first: clearhead predict {name} Once\n")


def test_a_word_much_like_a_run_is_a_text_and_noticed(call: Caller, run: str) -> None:
    shutil.copytree(run, "runs/letters-1")
    sentence = "there is no run letter-1, so it is read as a text; did you mean letters-1"
    assert sentence in call("predict", "letter-1").err.replace("'", "")
    assert "there is no run" not in call("predict", "elephants").err
