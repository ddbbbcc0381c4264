"""Where prepared texts and downloads are kept, and how a folder appears there whole or not at all."""

import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from clearhead import files
from clearhead.errors import DataError

FACTS = "facts.json"
_DAY = 86_400  # seconds


def cache_folder(folder: Path | None = None) -> Path:
    """The folder for what can be made again: the argument, $CLEARHEAD_CACHE, or the platform's folder for such files.

    Where there is no such folder, or it cannot be written, one of this user's own among the temporary files serves.

    Raises:
        DataError: the folder that was named cannot be written, or the temporary one is not this user's alone.
    """
    chosen = folder or os.environ.get("CLEARHEAD_CACHE")
    if chosen:
        folder = Path(os.path.expanduser(chosen)).absolute()
        with writing(folder):
            _probe(folder)
        return folder
    try:
        default = _platform_cache() / "clearhead"
        _probe(default)
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        return _temporary_cache()
    return default


def _platform_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _temporary_cache() -> Path:
    """A folder that nobody else can write: what lies in a cache is believed, verdicts on tokenizers for one."""
    if not hasattr(os, "getuid"):
        return Path(tempfile.gettempdir()) / "clearhead"  # on Windows a user's own already
    folder = Path(tempfile.gettempdir()) / f"clearhead-{os.getuid()}"
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise DataError(f"{folder} is not yours alone; remove it, or set CLEARHEAD_CACHE to a folder of yours")
    return folder


def _probe(folder: Path) -> None:
    """OSError unless files can be made in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def sweep(folder: Path) -> None:
    """Remove what processes left there that were killed a day ago or more."""
    for left in folder.glob(files.UNFINISHED + "*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime <= _DAY:
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Whatever the system refuses inside becomes a sentence.

    Raises:
        DataError: no space on the disk, or a folder that cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"no space left on the disk of {folder}; free some, or set CLEARHEAD_CACHE to a folder on another disk"
            ) from None
        raise DataError(
            f"cannot write in {folder} ({error.strerror or error}); set CLEARHEAD_CACHE to a folder that can be written"
        ) from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that takes the name `path`, flushed and with a manifest, when the block ends well.

    It is gone when the block does not. When another process was faster, its folder stays: both hold the same.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary = Path(tempfile.mkdtemp(prefix=files.UNFINISHED, dir=path.parent))
    try:
        yield temporary
        files.finish_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def continued_folder(path: Path) -> Iterator[Path]:
    """As `new_folder`, but what a killed process left of it is there again, and stays if this one is interrupted.

    Where another process is making the same folder at this moment, this one begins on its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary = path.with_name(files.UNFINISHED + path.name)
    lock = FileLock(temporary.with_name(temporary.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError, NotImplementedError):  # some network file systems have no locks
        with new_folder(path) as new:
            yield new
        return
    try:
        temporary.mkdir(exist_ok=True)
        try:
            yield temporary
            files.finish_folder(temporary, path)
        except Exception:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    finally:
        lock.release()
        with suppress(OSError):
            Path(lock.lock_file).unlink(missing_ok=True)


def keep(entry: Path, make: Callable[[Path], Mapping[str, object]], *, continued: bool = False) -> None:
    """Make the folder `entry` anew: what `make` puts into it, and what it returns as facts.json; or nothing at all.

    Where it is `continued`, `make` may find what a killed process left of the same entry.
    """
    with continued_folder(entry) if continued else new_folder(entry) as new:
        files.write_json(new / FACTS, make(new))


def facts_of(entry: Path) -> Any:
    """What `keep` wrote down there.

    Raises:
        OSError, ValueError: there is nothing, or it was cut off.
    """
    return files.read_json(entry / FACTS)
