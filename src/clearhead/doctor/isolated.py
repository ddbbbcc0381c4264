"""An examination in a process of its own: a target that prints, hangs, exits or crashes harms nothing.

Imports no torch.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from clearhead.doctor.report.records import Json
from clearhead.errors import ClearheadError, DataError, UsageError

KEPT = 1 << 16  # bytes of what a target says; all of it could fill the memory


@dataclass(frozen=True)
class Request:
    """What the command was asked.

    `factory` makes the model where the target is not code: 'module:function' and its argument. `other` and its factory
    are what the target is compared with. `arguments` are the arguments of a script.
    """

    target: str | None
    task: str = "check"
    kind: str | None = None
    level: str = "quick"
    only: Sequence[str] = ()
    allow: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    factory: tuple[str, str] | None = None
    other: str | None = None
    other_factory: tuple[str, str] | None = None
    arguments: Sequence[str] = ()
    batch: str | None = None
    device: str = "cpu"


def again(request: Mapping[str, Any], id: str) -> str:
    """The command that shows one finding again. `request` is plain data."""
    command = ["clearhead", "doctor", request["target"], "--level", request["level"], "--only", id]
    command += ["--seed", str(request["seed"])]
    for option in ("kind", "batch"):
        command += [f"--{option}", request[option]] if request[option] else []
    for key, value in request["settings"].items():
        command += ["--set", f"{key}={value}"]
    if request["device"] != "cpu":
        command += ["--device", request["device"]]
    return shlex.join(command)


def examine_isolated(
    request: Request, *, timeout: float, folder: Path | None = None, search: Sequence[str] = ()
) -> Json:
    """The report, or the table of a loss, as plain data.

    Args:
        timeout: in seconds; afterwards the process and all that it started are ended.
        folder: to work in; the present one by default.
        search: folders in which packages are looked for first.

    Raises:
        ClearheadError: what went wrong there, in the sentence and with the exit code that it had there.
    """
    with tempfile.TemporaryDirectory() as directory:
        question, answer = Path(directory) / "request.json", Path(directory) / "answer.json"
        question.write_text(json.dumps(asdict(request) | {"timeout": timeout}), encoding="utf-8")
        # -P: no file here passes for a library
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "clearhead.doctor", str(question), str(answer)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=_environment(search),
            start_new_session=True,
        )
        assert process.stderr is not None
        heard = Listener(process.stderr)
        waiting = threading.Thread(target=process.wait, daemon=True)  # `wait` with a time limit looks only now and then
        try:
            waiting.start()
            waiting.join(timeout)  # not until all is silent: what it started may hold on to its output
            code = process.returncode
        finally:
            _end(process)
            heard.wait()
        if code is None:
            raise DataError(
                f"{request.target} took more than {timeout:g} seconds; give it more with --timeout, or make it smaller"
            )
        if not answer.is_file():
            raise DataError(f"{request.target} {_how_it_ended(code)} ({heard.last_line[:200]})")
        document: Json = json.loads(answer.read_text(encoding="utf-8"))
    return answered(document)


def answered(document: Json) -> Json:
    """What was told, if it is an answer.

    Raises:
        ClearheadError: it is the sentence on why there is none.
    """
    if "error" in document:
        raise {2: UsageError, 3: DataError}.get(document["exit_code"], ClearheadError)(document["error"])
    return document


def _environment(search: Sequence[str]) -> dict[str, str]:
    path = [*search, *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"PYTHONPATH": os.pathsep.join(path)} if path else {}
    return os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} | more


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended the process with code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (", most likely for want of memory" if name == "SIGKILL" else "")


class Listener:
    """Reads what a process says, for as long as it does, and keeps the end of it: one that is not read would stop."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with self._stream:
            while part := os.read(self._stream.fileno(), KEPT):
                self._kept = (self._kept + part)[-KEPT:]

    def wait(self) -> None:
        """After the process has ended: for what is on its way. What it started and what got away may speak for ever."""
        self._thread.join(timeout=1)

    @property
    def last_line(self) -> str:
        """That has anything in it."""
        lines = self._kept.decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The process and whatever it started."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
