"""An examination in a separate process: a target that prints, hangs, exits or crashes does no harm.

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
from clearhead.wording import counted

KEPT = 1 << 16  # bytes of a target's output; all of it could fill the memory


@dataclass(frozen=True)
class Request:
    """What to examine, and how."""

    target: str | None
    task: str = "check"  # loss, compare, train; or 'module:function', called with the model and this as plain data
    kind: str | None = None
    level: str = "quick"
    only: Sequence[str] = ()
    allow: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    factory: tuple[str, str] | None = None  # 'module:function' and its argument: makes a model that is not code
    other: str | None = None  # that the target is compared with
    other_factory: tuple[str, str] | None = None
    arguments: Sequence[str] = ()  # of a script
    batch: str | None = None
    pad_id: int | None = None
    device: str = "cpu"


def again(request: Mapping[str, Any], id: str) -> str:
    """The command that shows one finding again. `request` is plain data."""
    command = ["clearhead", "doctor", request["target"], "--level", request["level"], "--only", id]
    command += ["--seed", str(request["seed"])]
    for option in ("kind", "batch"):
        command += [f"--{option}", request[option]] if request[option] else []
    command += ["--pad-id", str(request["pad_id"])] if request["pad_id"] is not None else []
    for key, value in request["settings"].items():
        command += ["--set", f"{key}={value}"]
    command += ["--device", request["device"]] if request["device"] != "cpu" else []
    return shlex.join(command)


def examine_isolated(
    request: Request, *, timeout: float, folder: Path | None = None, search: Sequence[str] = ()
) -> Json:
    """The result of a request, as plain data.

    Args:
        timeout: in seconds; afterwards the process and its group are killed.
        folder: to run in; the current one by default.
        search: folders in which packages are searched for first.

    Raises:
        ClearheadError: what went wrong there, with the same sentence and exit code.
    """
    with tempfile.TemporaryDirectory() as directory:
        question, answer = Path(directory) / "request.json", Path(directory) / "answer.json"
        question.write_text(json.dumps(asdict(request) | {"timeout": timeout}), encoding="utf-8")
        # -P: no file in the current folder is taken for a library
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
        listener = Listener(process.stderr)
        waiting = threading.Thread(target=process.wait, daemon=True)  # `wait` with a timeout polls, which is slower
        try:
            waiting.start()
            waiting.join(timeout)  # for the process alone: its children may keep its output open
            code = process.returncode
        finally:
            _kill(process)
            listener.wait()
        if code is None:
            raise DataError(
                f"{request.target} took more than {counted(timeout, 'second')}; "
                "allow more with --timeout, or make it smaller"
            )
        if not answer.is_file():
            raise DataError(f"{request.target} {_how_it_ended(code)} ({listener.last_line[:200]})")
        return answered(json.loads(answer.read_text(encoding="utf-8")))


def answered(document: Json) -> Json:
    """A document that came back, if it is a result.

    Raises:
        ClearheadError: it holds the sentence on why there is none.
    """
    if "error" in document:
        kind = {2: UsageError, 3: DataError}.get(document["exit_code"], ClearheadError)
        raise kind(document["error"], below=str(document.get("below", "")))
    return document


def _environment(search: Sequence[str]) -> dict[str, str]:
    path = [*search, *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"PYTHONPATH": os.pathsep.join(path)} if path else {}
    return os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} | more


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended the process with code {code}"
    name = signal.Signals(-code).name
    return f"was killed by {name}" + (", most likely because memory ran out" if name == "SIGKILL" else "")


class Listener:
    """Reads the output of a process in a thread, so that it never blocks, and keeps the end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with self._stream:
            while part := os.read(self._stream.fileno(), KEPT):
                self._kept = (self._kept + part)[-KEPT:]

    def wait(self) -> None:
        """After the process has ended: for output on its way, but not for children that still run."""
        self._thread.join(timeout=1)

    @property
    def last_line(self) -> str:
        """The last that is not empty."""
        lines = self._kept.decode("utf-8", "replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "it printed no reason")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """The process and its group."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
