"""The one way from the command to a terminal, a pipe or a file.

Everything that is printed goes through here, by whatever code: names and sentences as one line, texts as printable
text. Only a result that is a text (what `generate`, `fill` and `translate` write, a configuration) is sent as it is,
and only where no terminal shows it. A stream that can no longer be written to never fails where it is met, which may be
in another thread: the failure is remembered, and told where the command can act on it.
"""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from clearhead.errors import OutputError
from clearhead.pages import ESCAPES, one_line, printable

JSON_ESCAPES = {code: f"\\u{code:04x}" for code in ESCAPES}
NAMES = {"stdout": "standard output", "stderr": "standard error"}


class Output:
    """A standard stream. Writes what it is given as it is, and never raises for what became of the stream."""

    def __init__(self, stream: TextIO | None, name: str = "standard output") -> None:
        self.stream, self.name = stream, name
        self.error: OSError | None = None  # why nothing more can be written, whichever thread met it

    @property
    def is_open(self) -> bool:
        """Whether the process was given the stream at all."""
        return self.stream is not None

    @property
    def encoding(self) -> str:
        """The stream's own."""
        return getattr(self.stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.stream is not None and not self.stream.closed and self.stream.isatty()

    def fileno(self) -> int:
        """The system's handle."""
        if self.stream is None:
            raise OSError(f"{self.name} is closed")
        return self.stream.fileno()

    def write(self, text: str) -> int:
        """Send a text as it is. Rich writes here what it made of printable text, colors and all."""
        if self.error is None:
            try:
                if self.stream is None or self.stream.closed:
                    raise OSError("it is closed")
                self.stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Send what is buffered."""
        if self.error is None and self.stream is not None and not self.stream.closed:
            try:
                self.stream.flush()
            except OSError as error:
                self._give_up(error)

    def line(self, text: str) -> None:
        """A sentence, or a line of a table; a name in it cannot end it."""
        self.write(one_line(text) + "\n")
        self.flush()

    def text(self, text: str) -> None:
        """A piece of a result that is a text: exactly as it is, but for a terminal.

        Raises:
            OutputError: it cannot be written.
        """
        self.write(printable(text) if self.is_styled else text)
        self.flush()
        self.check()

    @property
    def is_styled(self) -> bool:
        """Whether it is a terminal, or is to be treated as one, as rich understands these two variables."""
        forced = bool(os.environ.get("FORCE_COLOR")) or os.environ.get("TTY_COMPATIBLE") == "1"
        return self.isatty() or (forced and self.is_open)

    def check(self) -> None:
        """Tell what any thread met.

        Raises:
            OutputError: nothing more can be written.
        """
        if self.error is not None:
            raise OutputError(self.sentence, nobody_reads=isinstance(self.error, BrokenPipeError))

    @property
    def sentence(self) -> str:
        """What went wrong, for a person."""
        reason = getattr(self.error, "strerror", None) or str(self.error)
        return f"{self.name} cannot be written ({reason}); send it to where there is room, or to {os.devnull}"

    def _give_up(self, error: OSError) -> None:
        self.error = error
        with suppress(OSError, ValueError):  # what is still buffered goes nowhere, instead of failing again at the end
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


class Printable:
    """What stands in the place of `sys.stdout` and `sys.stderr`: whoever prints, only printable text comes out."""

    errors = "replace"

    def __init__(self, output: Output) -> None:
        self.output, self.encoding = output, output.encoding

    def write(self, text: str) -> int:
        """Send a text as a terminal may be sent it."""
        return self.output.write(printable(text))

    def flush(self) -> None:
        """Send what is buffered."""
        self.output.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self.output.isatty()

    def fileno(self) -> int:
        """The system's handle."""
        return self.output.fileno()

    def writable(self) -> bool:
        """It is there to be written to."""
        return True

    @property
    def closed(self) -> bool:
        """Never: what nobody takes is dropped."""
        return False


def standard_output() -> Output:
    """Where results go."""
    return _output("stdout")


def standard_error() -> Output:
    """Where sentences about the work go."""
    return _output("stderr")


def notice(sentence: str) -> None:
    """A sentence for the person, beside the result."""
    standard_error().line(f"clearhead: {in_flags(sentence)}")


def json_line(payload: Mapping[str, object]) -> str:
    """One JSON object as a line that any parser reads and any terminal may show.

    What a terminal would obey is written as JSON's own escapes, which changes no value, and so are the lone surrogates
    that stand for the bytes of a name that is not UTF-8.
    """
    text = json.dumps(payload, ensure_ascii=False).translate(JSON_ESCAPES)
    return text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"


@contextmanager
def printable_streams() -> Iterator[Output]:
    """While it lasts, whatever is printed by anyone is UTF-8 and printable; yields the standard output."""
    before = sys.stdout, sys.stderr
    for name in NAMES:
        if not isinstance(getattr(sys, name), Printable):
            stream = getattr(sys, name)
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(encoding="utf-8", errors="replace")
            setattr(sys, name, cast(TextIO, Printable(_output(name))))
    try:
        yield standard_output()
    finally:
        sys.stdout, sys.stderr = before


def _output(name: str) -> Output:
    stream = getattr(sys, name)
    return stream.output if isinstance(stream, Printable) else Output(stream, NAMES[name])


def in_flags(sentence: str) -> str:
    """The library's sentence about arguments and calls, as one about flags and commands.

    `num_samples`, `preset='tiny'`, `options={'train.steps': 9}`, `ch.resume('runs/a')`: a call behind a
    colon is a command line by itself, one elsewhere stands in quotes.
    """

    def call(match: re.Match[str]) -> str:
        command = f"clearhead {match['verb'].replace('_', '-')} {_command_line(match['arguments'])}".rstrip()
        return f"'{command}'" if match["colon"] is None else command

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if value is not None and (name == "options" or value[:1] in "'\""):
            return _command_line(f"{name}={value}")
        return f"{_flag(name)}{f' {value}' if value else ''}"

    sentence = re.sub(r"(?P<colon>(?<=: ))?`ch\.(?P<verb>[a-z_]+)\((?P<arguments>[^`]*)\)`", call, sentence)
    return re.sub(r"`([a-z][a-z_.]*)(?:=([^`]*))?`", flag, sentence)


def _command_line(arguments: str) -> str:
    """Python's arguments as those of a command."""
    parsed = ast.parse(f"f({arguments})", mode="eval").body
    assert isinstance(parsed, ast.Call)
    typed = [ast.literal_eval(value) for value in parsed.args]
    for keyword in parsed.keywords:
        value = ast.literal_eval(keyword.value)
        for name, part in value.items() if isinstance(value, dict) else [(keyword.arg, value)]:
            typed += [_flag(str(name)), part]
    texts = [str(part) for part in typed]
    return subprocess.list2cmdline(texts) if os.name == "nt" else shlex.join(texts)


def _flag(name: str) -> str:
    name = {"start_from": "from"}.get(name, name)
    return f"--{name if '.' in name else name.replace('_', '-')}"
