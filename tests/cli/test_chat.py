"""`clearhead chat`, on a terminal and from a pipe."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chat_templates import CHATML, tokenizer_files
from child_processes import PATIENCE, read_before
from command_helpers import Caller
from run_folders import write_run

from clearhead.data import Tokenizer

QUICK = ("--max-new-tokens", "6", "--engine", "eager", "--seed", "1")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("chat")
    tokenizer_files("bytes", folder / "files", CHATML)
    write_run(folder / "run", tokenizer=Tokenizer.load(folder / "files", keep_frame=True), block_size=512)
    return str(folder / "run")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_run(tmp_path_factory.mktemp("plain") / "run").folder)


def pipe(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_each_line_of_a_pipe_is_a_message(call: Caller, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(b"hello\n\n/quit\r\nagain", monkeypatch)
    called = call("chat", run, "--json", "--system", "be nice", *QUICK)
    assert called.json["run"] == run
    assert [(m["role"], m["content"]) for m in called.json["messages"] if m["role"] != "assistant"] == [
        *(("system", "be nice"), ("user", "hello"), ("user", "/quit"), ("user", "again"))
    ]
    pipe(b"hello\n\n/quit\r\nagain", monkeypatch)
    code, out, err = call("chat", run, "--system", "be nice", *QUICK)
    assert (code, err) == (0, "")
    assert out == "".join(m["content"] + "\n" for m in called.json["messages"] if m["role"] == "assistant")


def test_what_is_no_text_is_refused(call: Caller, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(b"hello\xff\n", monkeypatch)
    code, _, err = call("chat", run, *QUICK)
    assert (code, err) == (3, "clearhead: a message is not UTF-8 at byte 5\n")


def test_a_run_without_a_template_says_what_to_do(call: Caller, plain: str) -> None:
    code, out, err = call("chat", plain)
    assert (code, out) == (2, "")
    assert "has no chat template" in err
    assert f"clearhead generate {plain}" in err
    assert "--template FILE" in err


class Talk:
    """The command on a terminal."""

    def __init__(self, *argv: str) -> None:
        import pty

        self.terminal, other_end = pty.openpty()
        command = [sys.executable, "-m", "clearhead", "chat", *argv]
        variables = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        self.process = subprocess.Popen(
            command, env=variables, start_new_session=True, stdin=other_end, stdout=other_end, stderr=other_end
        )
        os.close(other_end)
        self.shown = b""

    def wait_for(self, text: str) -> str:
        """What came before the text, and goes."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.shown:
            block = read_before(self.terminal, deadline)
            assert block, self.shown.decode()
            self.shown += block
        before, _, self.shown = self.shown.partition(text.encode())
        return before.decode()

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        os.close(self.terminal)
        self.process.kill()
        self.process.wait(PATIENCE)


@pytest.fixture
def talk(run: str) -> Iterator[Talk]:
    talk = Talk(run, *QUICK)
    try:
        talk.wait_for("\n> ")
        yield talk
    finally:
        talk.close()


@pytest.mark.skipif(os.name == "nt", reason="there are no such terminals")
def test_a_person_can_talk_and_command(talk: Talk) -> None:
    talk.type("hello\n")
    first = talk.wait_for("\n> ")
    talk.type("/undo\n")
    talk.wait_for("\n> ")
    talk.type("hello\n")
    assert talk.wait_for("\n> ") == first, "the same seed, and nothing said before"
    for line, answer in (
        ("/help", "forget the last message"),
        ("/sing", "there is no command '/sing'"),
        ("/seed x", "a seed is a whole number, not 'x'"),
    ):
        talk.type(line + "\n")
        assert answer in talk.wait_for("\n> ")
    talk.type("/undo\n")
    talk.wait_for("\n> ")
    talk.type("/undo\n")
    assert "nothing to undo" in talk.wait_for("\n> ")
    talk.type("/system be nice\n")
    talk.wait_for("\n> ")
    talk.type("hello\n")
    assert talk.wait_for("\n> ") != first
    talk.type("/quit\n")
    assert talk.process.wait(PATIENCE) == 0


@pytest.mark.campaign
@pytest.mark.skipif(os.name == "nt", reason="there are no such terminals")
def test_an_answer_is_shown_without_what_a_terminal_would_obey(talk: Talk) -> None:
    for number in range(6):
        talk.type(f"/seed {number}\n")
        talk.wait_for("\n> ")
        talk.type("hello\n")
        answer = talk.wait_for("\n> ").rstrip("\r").replace("\r\n", "\n")
        assert not [sign for sign in answer if sign < " " and sign not in "\n\t"]


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.name == "nt", reason="there are no such terminals")
@pytest.mark.parametrize("end", ["ctrl-d", "ctrl-c twice"])
def test_the_ways_out(talk: Talk, end: str) -> None:
    if end == "ctrl-d":
        talk.type("\x04")
    else:
        talk.interrupt()
        talk.wait_for("Ctrl-C again ends the chat")
        talk.wait_for("> ")
        talk.interrupt()
    assert talk.process.wait(PATIENCE) == 0


@pytest.mark.skipif(os.name == "nt", reason="there are no such terminals")
def test_ctrl_c_stops_the_answer_and_not_the_program(run: str) -> None:
    talk = Talk(run, "--max-new-tokens", "400", "--engine", "eager", "--seed", "1", "--temperature", "2")
    try:
        talk.wait_for("\n> ")
        talk.type("hello\n")
        talk.wait_for("hello\r\n")
        while len(talk.shown) < 3:
            talk.shown += read_before(talk.terminal, time.monotonic() + PATIENCE)
        talk.interrupt()
        talk.wait_for("clearhead: stopped")
        talk.wait_for("> ")
        talk.type("/undo\n")
        talk.wait_for("> ")
        talk.type("\x04")
        assert talk.process.wait(PATIENCE) == 0
    finally:
        talk.close()


def test_a_file_may_hold_the_template(
    call: Caller, plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}", encoding="utf-8")
    pipe(b"hello\n", monkeypatch)
    code, _, err = call("chat", plain, "--template", "chat.jinja", *QUICK)
    assert (code, err) == (0, "")
