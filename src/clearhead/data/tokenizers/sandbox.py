"""A tokenizer from elsewhere is tried in a process of its own, in bounded time and memory, before it is believed.

What was believed once is remembered in the cache by its digest, and not tried again.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import tokenizers

from clearhead.cache import cache_folder
from clearhead.data.tokenizers import sandboxed
from clearhead.data.tokenizers.patterns import TooAmbiguousError, refuse_ambiguous
from clearhead.errors import DataError
from clearhead.files import read_bytes

MAX_BYTES = 48 << 20  # of a tokenizer.json; the largest published ones, of 262,144 tokens, have 35 MB
SECONDS, SECONDS_PER_MB = 1.5, 0.15  # of processor time; small published ones take 0.2
MEMORY, MEMORY_PER_BYTE = 200 << 20, 16  # of addresses, of which the process has 30 MB when it starts
UNIGRAM_FACTOR = 4  # the library keeps such a vocabulary as a tree of characters as well
MAX_SHOWN = 100  # characters of a regular expression
PATIENCE = 20  # times the processor time, on a clock: the machine may be busy
TRIAL = 2  # raised when more is tried, so that what was believed is tried again


def read_safely(file: Path) -> bytes:
    """The content of a tokenizer.json that can be loaded and used.

    Raises:
        DataError: it cannot be read, is none, or breaks the library, or takes too much time or memory.
    """
    try:
        content = read_bytes(file, MAX_BYTES)
    except FileNotFoundError:
        raise DataError(f"there is no tokenizer at {file}; give auto, char, bpe or a tokenizer.json") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not _is_trusted(content):
        fault = _tried(content)
        if fault is not None:
            raise DataError(f"{file} {fault}")
        mark_trusted(content)
    return content


def mark_trusted(content: bytes) -> None:
    """Remember that this tokenizer.json needs no trial; without a cache, the next process tries it again."""
    with suppress(DataError, OSError):
        verdict = _verdict(content)
        verdict.parent.mkdir(exist_ok=True)
        verdict.touch()


def _is_trusted(content: bytes) -> bool:
    try:
        return _verdict(content).exists()
    except (DataError, OSError):
        return False


def _verdict(content: bytes) -> Path:
    """A marker file, which exists if the tokenizer passed."""
    tried_by = f"{tokenizers.__version__}-{TRIAL}"
    return cache_folder() / "tokenizers" / f"{hashlib.sha256(content).hexdigest()}-{tried_by}"


def _tried(content: bytes) -> str | None:
    """What is wrong with it, as the end of a sentence, or None."""
    megabytes = len(content) / 1e6
    heavier = UNIGRAM_FACTOR if b'"Unigram"' in content else 1
    seconds = SECONDS + heavier * SECONDS_PER_MB * megabytes
    memory = MEMORY + heavier * MEMORY_PER_BYTE * len(content)
    library = find_spec("tokenizers")
    assert library is not None
    assert library.origin is not None
    arguments = [f"{seconds:.3f}", str(memory), str(Path(library.origin).parents[1])]
    # -I -S: neither the current folder nor what is installed beside Python runs there
    command = [sys.executable, "-I", "-S", sandboxed.__file__, *arguments]
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(
            command,
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where Rust reports its panics
            env=environment,
            timeout=seconds * PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "takes too much time to use"
    except OSError as error:
        return f"cannot be tried in a process of its own ({error.strerror or error}), so it is not used"
    try:
        verdict = json.loads(done.stdout.splitlines()[-1])  # before it, the library's warnings
        fault: str | None = verdict["fault"]
        patterns: list[str] = verdict["patterns"]
    except (ValueError, LookupError):
        return _how_it_ended(done.returncode)
    return fault or next(filter(None, map(_ambiguity, patterns)), None)


def _ambiguity(pattern: str) -> str | None:
    """Whatever the samples of the trial did not meet."""
    try:
        refuse_ambiguous(pattern)
    except TooAmbiguousError as error:
        shown = pattern if len(pattern) <= MAX_SHOWN else pattern[: MAX_SHOWN - 3] + "..."
        return f"has the regular expression {shown!r}, which {error}"
    return None


def _how_it_ended(code: int) -> str:
    """Of a process that gave no answer."""
    if code < 0 and -code in (getattr(signal, "SIGPROF", None), getattr(signal, "SIGXCPU", None)):
        return "takes too much time to use"
    if code < 0 and -code in (getattr(signal, "SIGABRT", None), getattr(signal, "SIGKILL", None)):
        return "takes too much memory to use"
    return "breaks the tokenizers library"
