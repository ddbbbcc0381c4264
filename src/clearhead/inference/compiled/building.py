"""`decoder.cpp` as a shared library: made once for a machine in a few seconds, found again by every later process."""

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

import clearhead
from clearhead.data.cache import cache_folder, facts_of, keep
from clearhead.errors import DataError
from clearhead.inference.mode import Notice

HERE = Path(__file__).parent
FILE = "decoder.so"
CPP_TYPES = {torch.float32: "float", torch.float64: "double"}  # of the numbers that it can compute in
MAC = sys.platform == "darwin"
FLAGS: tuple[str, ...] = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-ffp-contract=fast", "-fno-math-errno")
FLAGS += () if MAC else ("-fopenmp",)  # and not linked with it: torch has brought its own, and two would be in the way
LINKING: tuple[str, ...] = ("-shared", "-undefined", "dynamic_lookup") if MAC else ("-shared",)


def folder_of(dtype: torch.dtype) -> Path:
    """Where the library is kept, or would be: every one that must differ has a folder of its own."""
    told = (_sources(), _processor(), FLAGS, compiler(), CPP_TYPES[dtype])
    return cache_folder() / "steps" / hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()


def compiler() -> str | None:
    """The path of the C++ compiler, if there is one; that of Windows is not asked, as its registers lie elsewhere."""
    if sys.platform == "win32":
        return None
    return shutil.which(os.environ.get("CXX", "clang++" if MAC else "g++"))


def library(dtype: torch.dtype, *, build: bool, notice: Notice) -> ctypes.CDLL | None:
    """The library that computes in numbers of this type, for as long as this process lives; None if there is none.

    Args:
        build: compile it where that was not done before, which takes seconds and of which `notice` is told.

    Raises:
        OSError: it cannot be loaded; it is then thrown away, so that the next process makes another.
        RuntimeError: it cannot be compiled.
    """
    folder = folder_of(dtype)
    if not is_built(folder):
        if not build:
            return None
        if reason := _failure(Building(folder, dtype, notice)):
            raise RuntimeError(reason)
    try:
        return _opened(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def is_built(folder: Path) -> bool:
    """Whether a whole library is there that nobody else could have put there: it is run as part of this process."""
    try:
        facts_of(folder)
        return _is_owned(folder.parents[1]) and all(_is_ours(path) for path in (folder.parent, folder, folder / FILE))
    except (OSError, ValueError):
        return False


def build_into(folder: Path, dtype: torch.dtype) -> None:
    """Compile.

    Raises:
        DataError: others could change what is in the folder, or the compiler failed.
    """

    def make(new: Path) -> dict[str, Any]:
        path, made = compiler(), new / "decoder.o"
        _run(path, *FLAGS, f"-DNUMBER={CPP_TYPES[dtype]}", "-c", HERE / "decoder.cpp", "-o", made)
        _run(path, *LINKING, made, "-o", new / FILE)
        made.unlink()
        (new / FILE).chmod(0o600)
        return {"clearhead": clearhead.__version__, "compiler": path, "flags": FLAGS}

    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (_is_owned(folder.parents[1]) and _is_ours(folder.parent)):
        raise DataError(f"others can write in {folder.parent}; set CLEARHEAD_CACHE to a folder of your own")
    keep(folder, make)


@dataclass(frozen=True)
class Building:
    """What is compiled; who is told of it makes no difference."""

    folder: Path
    dtype: torch.dtype
    notice: Notice = field(compare=False)


@cache
def _failure(building: Building) -> str | None:
    """Compile; why that cannot be done, if so. This process does not try it again."""
    building.notice("compiling code for this machine: a few seconds, once; the engine 'plain' does without")
    try:
        build_into(building.folder, building.dtype)
    except (DataError, OSError) as error:
        return str(error)
    return None


@cache
def _opened(folder: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(folder / FILE))
    found.clearhead_write.restype = found.clearhead_continue.restype = None
    return found


def _run(*command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DataError(next(iter(done.stderr.splitlines()), f"the compiler ended with {done.returncode}"))


def _is_owned(path: Path) -> bool:
    """Whether nobody else could rename what is in this folder; a group may write there, often a person's own."""
    return path.stat().st_uid == os.getuid()


def _is_ours(path: Path) -> bool:
    return _is_owned(path) and not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@cache
def _sources() -> str:
    """A digest of what is compiled."""
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sorted(HERE.glob("*.[ch]*")))).hexdigest()


@cache
def _processor() -> str:
    """What machine code may be made for."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return platform.processor() + platform.node()
