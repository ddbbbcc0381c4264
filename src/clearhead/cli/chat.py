"""clearhead chat"""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clearhead.cli import interrupts
from clearhead.cli.arguments import Parser, settings_of
from clearhead.cli.console import Console
from clearhead.cli.environment import load_workflow
from clearhead.cli.implied_run import implied_run
from clearhead.cli.output import notice, standard_output
from clearhead.cli.standard_input import is_typed
from clearhead.config import EngineConfig, SamplingConfig
from clearhead.errors import ClearheadError, DataError, UsageError

if TYPE_CHECKING:
    from clearhead.config import GenerationConfig
    from clearhead.workflows import Chat

HELP = """/system TEXT   say how to answer; without a text: forget that
/seed N        draw the same answers each time; without a number: new ones
/undo          forget the last message and its answer
/help          show this
/quit          end, as Ctrl-D does; Ctrl-C stops an answer
A message that begins with / is written with //.
"""


def parser() -> Parser:
    """What `clearhead chat` understands."""
    parser = Parser(
        "chat",
        "Chat with a model. Type /help to see what else you can do; from a pipe, each line is a message.",
        [
            ("clearhead chat runs/a", "talk to an imported model"),
            ('clearhead chat --system "Answer in one line." --temperature 0.3', "with the newest run, soberly"),
        ],
    )
    parser.add_argument("run", nargs="?", help="a run's folder or name (default: the newest)")
    parser.add_argument("--system", help="a message to begin with, which says how to answer")
    parser.add_argument("--template", metavar="FILE", help="a chat template, for a run that has none")
    parser.add_argument("--device", help="auto, cpu, cuda, mps")
    parser.add_options(SamplingConfig, "sampling, in the order in which it is applied", hidden={"num_samples"})
    parser.add_options(EngineConfig, "speed")
    return parser


def run(args: argparse.Namespace) -> None:
    """Answer message after message."""
    load_workflow("chat")
    from clearhead import workflows

    chat = workflows.chat(
        implied_run(getattr(args, "run", None)),
        system=getattr(args, "system", None),
        template=getattr(args, "template", None),
        device=getattr(args, "device", "auto"),
        on_notice=notice,
        **settings_of(args, SamplingConfig),
        **settings_of(args, EngineConfig),
    )
    if is_typed() and not args.json:
        _talk(chat)
    else:
        _answer_lines(chat, as_json=args.json)
    messages = [message._asdict() for message in chat.messages]
    Console(json=args.json).result({"run": str(chat.run.folder), "messages": messages})


def _answer_lines(chat: "Chat", *, as_json: bool) -> None:
    """Each line of standard input is a message; Ctrl-C ends the program."""
    if sys.stdin is None:
        raise DataError("standard input is closed, so there is no message to read; pipe it in")
    for line in sys.stdin.buffer:
        message = _decoded(line)
        if message:
            chat.say(message, None if as_json else standard_output().text)
            if not as_json:
                standard_output().text("\n")


def _talk(chat: "Chat") -> None:
    """With a person: Ctrl-C stops an answer, and Ctrl-D, /quit or Ctrl-C twice at the prompt ends it."""
    standard_output().line(f"Chatting with {chat.run.folder}; /help says what you can do, Ctrl-D ends.")
    for line in _typed_lines():
        try:
            if line.startswith("/") and not line.startswith("//"):
                if not _obey(chat, line):
                    return
            else:
                _answer(chat, line[1:] if line.startswith("//") else line)
        except (UsageError, DataError) as error:  # which the person can mend
            notice(str(error))


def _typed_lines() -> Iterator[str]:
    """What the person types, line by line."""
    interrupted = False
    while True:
        try:
            standard_output().text("> ")
            line = sys.stdin.buffer.readline()
        except KeyboardInterrupt:
            interrupts.forget()
            standard_output().text("\n")
            if interrupted:
                return
            interrupted = True
            notice("Ctrl-C again ends the chat, and so do Ctrl-D and /quit")
            continue
        interrupted = False
        if not line:
            standard_output().text("\n")
            return
        try:
            if text := _decoded(line):
                yield text
        except DataError as error:
            notice(str(error))


def _answer(chat: "Chat", message: str) -> None:
    try:
        chat.say(message, standard_output().text)
        standard_output().text("\n")
    except KeyboardInterrupt:
        interrupts.forget()
        standard_output().text("\n")
        notice("stopped")
    except ClearheadError:
        standard_output().text("\n")
        raise


def _obey(chat: "Chat", line: str) -> bool:
    """Follow a command; whether the chat goes on."""
    name, _, value = line[1:].partition(" ")
    value = value.strip()
    match name:
        case "quit" | "exit":
            return False
        case "help":
            standard_output().text(HELP)
        case "system":
            chat.system = value or None
        case "seed":
            chat.config = _with_seed(chat, value)
        case "undo":
            if not chat.undo():
                notice("there is nothing to undo")
        case _:
            raise UsageError(f"there is no command '/{name}'; /help lists them, and // begins a message with /")
    return True


def _with_seed(chat: "Chat", value: str) -> "GenerationConfig":
    if value and not (value.isdecimal() and value.isascii() and len(value) < 19):
        raise UsageError(f"a seed is a whole number, not '{value}'")
    return chat.config.model_copy(update={"seed": int(value) if value else None})


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"a message is not UTF-8 at byte {error.start}") from None
