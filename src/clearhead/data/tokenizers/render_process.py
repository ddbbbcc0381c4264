"""The process that renders chat templates: started when it is needed, ended when a template takes too much of it."""

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypedDict

from clearhead.data.tokenizers import rendering as program
from clearhead.errors import DataError, UsageError

SECONDS, PATIENCE = 2.0, 15  # of processor time for one request; times that, on a clock: the machine may be busy
MEMORY = 512 << 20  # bytes of addresses
MAX_GROWTH, MAX_TEXT = 4, 1 << 20  # characters rendered: so many for each of the messages, and so many beside
TOO_SLOW = "takes too much time"


class ChatTemplateError(DataError):
    """A chat template is wrong, or takes too much time or memory; no message is to blame. Its sentence has no path."""


class Answer(TypedDict, total=False):
    """What the process answers: texts, or a fault, and whether the template itself refuses, or the process died."""

    texts: list[str]
    fault: str
    refused: bool
    died: bool


class Rendering(NamedTuple):
    """What a template is rendered with: its variables, and texts of its own that are to be replaced."""

    variables: Mapping[str, object]
    marks: Mapping[str, str] = {}


class RenderProcess:
    """Renders for every thread, one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def render(self, template: str, renderings: Sequence[Rendering]) -> list[str]:
        """The text of each rendering.

        Raises:
            UsageError: the template refuses the messages; its own sentence.
            ChatTemplateError: the template is wrong, or takes too much time or memory.
        """
        parameters = [rendering._asdict() for rendering in renderings]
        content = json.dumps(parameters)
        limit = MAX_GROWTH * len(content) + MAX_TEXT
        request = json.dumps({"template": template, "limit": limit, "renderings": parameters}).encode() + b"\n"
        with self._lock:
            longest = 6 * limit * len(parameters) + MAX_TEXT  # a character takes six bytes at most
            answer = self._ask(request, longest)
            if answer.get("died"):  # perhaps somebody else killed it
                answer = self._ask(request, longest)
        if "texts" in answer:
            return answer["texts"]
        if answer["refused"]:
            raise UsageError(f"the chat template refuses these messages: {answer['fault']}")
        raise ChatTemplateError(f"the chat template {answer['fault']}")

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with suppress(OSError):
                process.communicate()

    def _ask(self, request: bytes, longest: int) -> Answer:
        """One line, and its answer; a process that gave none has ended."""
        try:
            process = self._process = self._process or _start()
        except OSError as error:
            raise ChatTemplateError(
                f"the chat template cannot be rendered in a process of its own ({error.strerror or error})"
            ) from None
        assert process.stdin is not None
        assert process.stdout is not None
        clock = threading.Timer(SECONDS * PATIENCE, process.kill)
        clock.daemon = True
        clock.start()
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline(longest)
            answer: Answer = json.loads(line)
            return answer
        except (OSError, ValueError):
            code = None
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(2)
            self.close()
            fault = _how_it_ended(code, clock.finished.is_set())
            return {"fault": fault, "refused": False, "died": code is not None and fault != TOO_SLOW}
        except BaseException:  # such as Ctrl-C: what it answers later is nobody's
            self.close()
            raise
        finally:
            clock.cancel()


def _start() -> "subprocess.Popen[bytes]":
    folders = list[str]()
    for package in ("jinja2", "markupsafe"):
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        folders.append(str(Path(spec.origin).parents[1]))
    # -I -S: neither the current folder nor what is installed beside Python runs there
    command = [sys.executable, "-I", "-S", program.__file__, str(SECONDS), str(MEMORY), *dict.fromkeys(folders)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the caller alone
    )


def _how_it_ended(code: int | None, is_late: bool) -> str:
    """Of a process that gave no answer."""
    import signal

    if is_late or (code is not None and -code == getattr(signal, "SIGPROF", None)):
        return TOO_SLOW
    return "takes too much memory" if code is None or code == -9 else "breaks what renders it"


PROCESS = RenderProcess()
