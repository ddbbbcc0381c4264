"""Compile `decoder.cpp` into a shared library, once per machine; later processes load it from the cache."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

import clearhead
from clearhead.cache import FACTS, cache_folder, new_folder
from clearhead.errors import DataError
from clearhead.files import damage, write_json
from clearhead.models.eval_mode import OnNotice
from clearhead.native.structures import LAYOUT, refuse_other_structures

HERE = Path(__file__).parent
FILE = "decoder.so"
MAX_SECONDS = 120.0  # time limit of one compilation, about ten times what it takes
DAY = 86_400  # seconds for which a compiler that did not end is not tried again
CPP_TYPES = {torch.float32: "float", torch.float64: "double"}  # the dtypes that it can compute in
MAC = sys.platform == "darwin"
FLAGS: tuple[str, ...] = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-ffp-contract=fast", "-fno-math-errno")
FLAGS += () if MAC else ("-fopenmp",)  # not linked: torch already loads an OpenMP runtime; two conflict
LINKING: tuple[str, ...] = ("-shared", "-undefined", "dynamic_lookup") if MAC else ("-shared",)


def folder_of(dtype: torch.dtype) -> Path:
    """The library's folder in the cache, by a hash of all that the native code depends on."""
    key = (_sources(), _processor(), FLAGS, compiler(), CPP_TYPES[dtype])
    return cache_folder() / "steps" / hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()


def compiler() -> tuple[str, ...] | None:
    """The C++ compiler, or None: $CXX, which may have arguments, as in `ccache g++`, else g++ or clang++.

    Not supported on Windows.
    """
    if sys.platform == "win32":
        return None
    command = os.environ.get("CXX") or ("clang++" if MAC else "g++")
    if path := shutil.which(command):  # spaces in a path are part of it
        return (path,)
    try:
        program, *arguments = shlex.split(command)
    except ValueError:
        return None
    path = shutil.which(program)
    return None if path is None else (path, *arguments)


def library(dtype: torch.dtype, *, build: bool, on_notice: OnNotice) -> ctypes.CDLL | None:
    """The library that computes in this dtype, loaded once per process; None if it is not built.

    Args:
        build: compile it if need be, which takes seconds.
        on_notice: called with a sentence before it is compiled.

    Raises:
        OSError: it cannot be loaded; it is then deleted, so that the next process compiles it again.
        RuntimeError: it cannot be compiled, or has other structures than this version of Clearhead.
    """
    folder = folder_of(dtype)
    if not is_built(folder):
        if not build:
            return None
        if reason := _failure(Building(folder, dtype, on_notice)):
            raise RuntimeError(reason)
    try:
        return _load(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def is_built(folder: Path) -> bool:
    """Whether the library is there, undamaged, in folders that no other user can write to.

    It runs inside this process, so a truncated or foreign one must not be loaded.
    """
    try:
        owned = _is_owned(folder.parents[1])
        return owned and all(map(_is_ours, (folder.parent, folder, folder / FILE))) and damage(folder) is None
    except OSError:
        return False


def build_into(folder: Path, dtype: torch.dtype) -> None:
    """Compile the library. If another process has finished first, its library stays.

    Raises:
        DataError: other users can write to the folder, or the compiler failed.
        OSError: the folder cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (_is_owned(folder.parents[1]) and _is_ours(folder.parent)):
        raise DataError(f"others can write in {folder.parent}; set CLEARHEAD_CACHE to a folder of your own")
    try:
        with new_folder(folder) as new:
            _compile(new, dtype)
    except OSError:
        if not is_built(folder):
            raise


def _compile(folder: Path, dtype: torch.dtype) -> None:
    command, compiled, end = compiler(), folder / "decoder.o", time.monotonic() + MAX_SECONDS
    if command is None:
        raise DataError("there is no C++ compiler")
    source = ("-c", str(HERE / "decoder.cpp"), "-o", str(compiled))
    _run((*command, *FLAGS, f"-DNUMBER={CPP_TYPES[dtype]}", f"-DLAYOUT={LAYOUT}", *source), end)
    _run((*command, *LINKING, str(compiled), "-o", str(folder / FILE)), end)
    compiled.unlink()
    (folder / FILE).chmod(0o600)
    write_json(folder / FACTS, {"clearhead": clearhead.__version__, "compiler": command, "flags": FLAGS})


@dataclass(frozen=True)
class Building:
    """Cache key of a build; `on_notice` is not compared."""

    folder: Path
    dtype: torch.dtype
    on_notice: OnNotice = field(compare=False)


@cache
def _failure(building: Building) -> str | None:
    """Compile, once per process; return why that failed, or None."""
    if _did_not_end():
        return _endless()
    building.on_notice("compiling code for this machine: a few seconds, once; set engine = eager to avoid this")
    try:
        build_into(building.folder, building.dtype)
    except (DataError, OSError) as error:
        return str(error)
    return None


@cache
def _load(folder: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(folder / FILE))
    refuse_other_structures(library)
    for function in (library.clearhead_write, library.clearhead_encode, library.clearhead_continue):
        function.restype = ctypes.c_int64
    return library


def _run(command: tuple[str, ...], end: float) -> None:
    """Run a command until `end` on the monotonic clock; then kill it and its children.

    Raises:
        DataError: it failed, or timed out.
    """
    with tempfile.TemporaryFile() as output:  # what it leaves running could hold a pipe open
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(max(0.0, end - time.monotonic()))
        except BaseException as error:  # Ctrl-C does not reach it by itself
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                with suppress(OSError):
                    _note().parent.mkdir(exist_ok=True)
                    _note().touch()
                raise DataError(_endless()) from None
            raise
        output.seek(0)
        lines = output.read(1 << 16).decode("utf-8", "replace").splitlines()
    if code:
        raise DataError(next((line for line in lines if line.strip()), f"the compiler ended with {code}"))


def _note() -> Path:
    """An empty file whose mtime is the last time this compiler timed out.

    The compiler's file size and mtime stand for its version, as a compiler that hangs cannot print it.
    """
    command = compiler()
    assert command is not None
    file = os.stat(command[0])
    identity = repr((command, file.st_size, file.st_mtime_ns)).encode()
    return cache_folder() / "compilers" / hashlib.blake2b(identity, digest_size=16).hexdigest()


def _did_not_end() -> bool:
    try:
        return compiler() is not None and time.time() - _note().stat().st_mtime < DAY
    except OSError:
        return False


def _endless() -> str:
    return f"the compiler {' '.join(compiler() or ())} did not end within {MAX_SECONDS:g} seconds; set CXX to another"


def _is_owned(path: Path) -> bool:
    """Whether the folder belongs to this user; its group may have write permission, as it is often the user's own."""
    return path.stat().st_uid == os.getuid()


def _is_ours(path: Path) -> bool:
    return _is_owned(path) and not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _sources() -> str:
    """A digest of the C++ sources."""
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sorted(HERE.glob("*.[ch]*")))).hexdigest()


@cache
def _processor() -> str:
    """The processor's features, as far as the system shows them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() + platform.node()
