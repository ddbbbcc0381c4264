"""What becomes of a stranger's folder: imported and used in a process that is forked after torch was loaded."""

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from hostile_mutations import Hostile

from clearhead.data import UnseenCharacterError
from clearhead.errors import ClearheadError, DataError
from clearhead.workflows import generate, import_model

PROMPTS = ("", "the cat", "a" * 200 + "!", "The king's café\n\n  猫", " " * 50 + "\n")
ADDRESSES = 3 << 30  # bytes; more than any bomb is to get
PATIENCE = 60  # seconds


class Outcome(NamedTuple):
    """How it ended.

    Attributes:
        how: refused, imported (and used), or broken.
        sentence: that was said, or a traceback.
        seconds: of processor time, the trial in another process included.
        megabytes: that the process grew.
        printed: what appeared on standard error, where nobody may print.
    """

    how: str
    sentence: str
    seconds: float
    megabytes: float
    printed: str

    @property
    def fault(self) -> str | None:
        """What is against the law in it."""
        if self.how == "broken":
            return self.sentence
        if "\n" in self.sentence or len(self.sentence) > 8_000:
            return f"no single sentence: {self.sentence[:300]}"
        if self.printed:
            return f"printed: {self.printed[:300]}"
        if self.seconds > 2 or self.megabytes > 256:
            return f"took {self.seconds:.1f} s and {self.megabytes:.0f} MB"
        return None


def write(folder: Path, hostile: Hostile) -> None:
    folder.mkdir()
    for name, content in hostile.files.items():
        if isinstance(content, Path):
            (folder / name).symlink_to(content)
        else:
            (folder / name).write_bytes(content)


def trial(hostile: Hostile, directory: Path) -> Outcome:
    """Import the folder in a process of its own, and let the run write."""
    folder, run, answer = directory / "m", directory / "r", directory / "answer.json"
    for old in (folder, run):
        shutil.rmtree(old, ignore_errors=True)
    answer.unlink(missing_ok=True)
    write(folder, hostile)
    assert torch.get_num_threads() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads; there are none
        process = os.fork()
    if not process:
        _child(folder, run, answer)
    status = _end_of(process)
    if not answer.exists():
        return Outcome("broken", f"the process ended with {os.waitstatus_to_exitcode(status)}", 0, 0, "")
    return Outcome(**json.loads(answer.read_text(encoding="utf-8")))


def _end_of(process: int) -> int:
    """The child ends itself after its patience; one that did not would be ended here."""
    for _ in range(100 * (PATIENCE + 10)):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    return os.waitpid(process, os.WNOHANG)[1] or signal.SIGKILL


def _child(folder: Path, run: Path, answer: Path) -> None:
    """Never returns."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        before, start_time = _usage(), time.process_time()
        with tempfile.TemporaryFile() as printed:
            os.dup2(printed.fileno(), 2)
            how, sentence = _used(folder, run)
            printed.seek(0)
            stderr = printed.read().decode("utf-8", "replace")
        after = _usage()
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = time.process_time() - start_time + children.ru_utime + children.ru_stime
        outcome = Outcome(how, sentence, seconds, (after - before) / 1024, stderr)
        answer.write_text(json.dumps(outcome._asdict()), encoding="utf-8")
    finally:
        os._exit(0)


def _usage() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used // 1024 if sys.platform == "darwin" else used  # KiB


def _used(folder: Path, run: Path) -> tuple[str, str]:
    try:
        imported = import_model(folder, out=run)
    except DataError as error:
        return "refused", str(error)
    except BaseException:
        return "broken", traceback.format_exc()
    try:
        tokenizer, readable = imported.tokenizer, []
        for prompt in PROMPTS:
            with suppress(UnseenCharacterError):  # a sentence for a person who types it
                tokenizer.decode(tokenizer.encode(prompt))
                readable.append(prompt)
        generate(imported, readable, max_new_tokens=6, seed=1, engine="eager")
    except ClearheadError as error:
        if "finite" in str(error):  # weights, or options, that overflow
            return "imported", str(error)
        return "broken", f"imported, but then: {error}"
    except BaseException:
        return "broken", traceback.format_exc()
    return "imported", f"read {len(readable)} prompts"
