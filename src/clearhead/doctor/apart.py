"""An examination in a process of its own: a target that prints, hangs, exits or crashes harms nothing.

Imports no torch.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clearhead.doctor.reports.findings import Json
from clearhead.errors import ClearheadError, DataError, UsageError


@dataclass(frozen=True)
class Request:
    """What the command was asked.

    `factory` makes the model where the target is not code: 'module:function' and its argument.
    `words` are the arguments of a script.
    """

    target: str
    task: str = "check"
    kind: str | None = None
    level: str = "quick"
    only: Sequence[str] = ()
    allow: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    factory: tuple[str, str] | None = None
    words: Sequence[str] = ()


def examine_apart(request: Request, *, timeout: float) -> Json:
    """The report, or the table of a loss, as plain data.

    Args:
        timeout: in seconds; afterwards the process and all that it started are ended.

    Raises:
        ClearheadError: what went wrong there, in the sentence and with the exit code that it had there.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-P", "-m", "clearhead.doctor", str(answer)]  # -P: no file here passes for a library
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
            start_new_session=True,
        )
        try:
            _, said = process.communicate(json.dumps(asdict(request)), timeout=timeout)
        except subprocess.TimeoutExpired:
            raise DataError(
                f"{request.target} took more than {timeout:g} seconds; give it more with --timeout, or make it smaller"
            ) from None
        finally:
            _end(process)
        if not answer.is_file():
            last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
            raise DataError(f"{request.target} ended the process with code {process.returncode} ({last.strip()[:200]})")
        told: Json = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in told:
        raise {2: UsageError, 3: DataError}.get(told["exit_code"], ClearheadError)(told["error"])
    return told


def _end(process: "subprocess.Popen[str]") -> None:
    """The process and whatever it started."""
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    if process.stderr:
        process.stderr.close()
    if process.stdin and not process.stdin.closed:
        process.stdin.close()
