"""Atomic, crash-safe writing of files and folders; size-limited reading of JSON."""

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
RUN_CONFIG = "clearhead.toml"  # a folder that holds it is a run
FORMAT = 1  # raised when what a folder holds changes its meaning
UNFINISHED = ".unfinished-"  # a file or folder being written or removed; after a crash, what bears this name is litter
MAX_OWN_JSON = 1 << 20  # bytes of a JSON file that only we write


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file through a temporary one beside it that is flushed and renamed.

    In a folder that is not finished yet nobody reads the file, and `finish_folder` or `move_into` flushes it: there it
    is written as it is.

    Args:
        path: the file; what it held before stays until the new content is whole.
        write: is called with the temporary path. A library that makes a file of its own there (safetensors makes one
            that only its owner can read) does not change who may read it.
    """
    if any(folder.name.startswith(UNFINISHED) for folder in path.parents):
        _write(path, write)
        return
    temporary = path.with_name(UNFINISHED + path.name)
    try:
        _write(temporary, write)
        finish_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def finish_file(temporary: Path, path: Path) -> Path:
    """Flush a file and give it its name: from one instant to the next `path` is whole. Returns it."""
    _flush_file(temporary)
    temporary.replace(path)
    _flush_folder(path.parent)
    return path


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all; newlines are written as they are."""
    write_whole(path, lambda temporary: temporary.write_bytes(text.encode("utf-8")))


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write readable JSON, whole or not at all; a NaN in it is a programming error."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def parse_json(text: str | bytes, *, pairs: Callable[[list[tuple[str, object]]], object] | None = None) -> object:
    """The value of a JSON text.

    Args:
        text: UTF-8, where it is bytes.
        pairs: makes an object of its pairs, in place of `dict`.

    Raises:
        ValueError: it is not JSON, or nested too deeply, or holds a number of too many digits.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # Python's limit on the digits of an integer, or bytes that are no text
        digits = "digits" in str(error)
        raise ValueError("it holds an integer of too many digits" if digits else str(error)) from None


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, or larger.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    if status.st_size > limit:
        raise ValueError(f"it has {status.st_size:,} bytes, and at most {limit:,} are read")
    with path.open("rb") as file:
        return file.read(limit)


def read_json(path: Path, limit: int = MAX_OWN_JSON) -> Any:
    """The value in a JSON file of at most `limit` bytes; of any type, as most callers know what they wrote.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, is larger, or is not JSON.
    """
    return parse_json(read_bytes(path, limit))


def start_folder(final: Path) -> Path:
    """An empty folder beside `final` to write into; `finish_folder` gives it its name."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(UNFINISHED + final.name)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    return temporary


def finish_folder(temporary: Path, final: Path) -> None:
    """Write the manifest, flush every file to the disk, and rename: from one instant to the next `final` is whole.

    Where another process is faster, the folder that it made stays if it holds the same.
    """
    files = {path.name: {"sha256": sha256(path), "bytes": path.stat().st_size} for path in sorted(temporary.iterdir())}
    write_manifest(temporary, {"format": FORMAT, "files": files})
    for path in temporary.iterdir():
        _flush_file(path)
    _flush_folder(temporary)
    try:
        if not _same(temporary, final):
            remove_folder(final)  # damaged, or of a past that was given up; no rename replaces a full folder
            temporary.rename(final)
            _flush_folder(final.parent)
    except OSError:
        if not _same(temporary, final):
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_manifest(folder: Path, content: Mapping[str, object]) -> None:
    """Write the list of a folder's files, and its own digest: without it, an altered list would blame the files."""
    write_json(folder / MANIFEST, {**content, "sha256": _digest(content)})


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `write_manifest` wrote.

    Raises:
        OSError, ValueError: it is missing, or is not what was written.
    """
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.pop("sha256", None) != _digest(manifest):
        raise ValueError("it was altered")
    return manifest


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def adding_to(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files are in `folder`, each whole, when the block ends well; else they are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
    try:
        yield temporary
        move_into(folder, temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_into(folder: Path, temporary: Path) -> None:
    """Move the files of a temporary folder, flushed, into a folder in use; each file is whole at every instant."""
    for path in sorted(temporary.iterdir(), reverse=True):  # model.onnx.data before the model.onnx that names it
        _flush_file(path)
        path.replace(folder / path.name)
    temporary.rmdir()
    _flush_folder(folder)


def remove_folder(path: Path) -> None:
    """Remove a folder; a crash in the middle leaves litter, never half a folder under its name."""
    if path.exists():
        doomed = path.with_name(UNFINISHED + "removal-" + path.name)
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def remove_litter(parent: Path) -> None:
    """Remove what a crash left unfinished. Only for the one process that writes here."""
    for path in parent.glob(UNFINISHED + "*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def damage(folder: Path, *, only_sized: Collection[str] = ()) -> str | None:
    """What is wrong with a finished folder, as the end of a sentence, or None when every byte is as it was written.

    Args:
        folder: that `finish_folder` made.
        only_sized: files of which the size alone is compared, because whoever reads them checks what they hold.
    """
    try:
        manifest = read_manifest(folder)
        format_, files = manifest["format"], dict(manifest["files"])
        for name, written in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != written["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {written['bytes']}"
            if name not in only_sized and sha256(path) != written["sha256"]:
                return f"{name} was altered"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or was altered"
    return None if format_ == FORMAT else f"its format is {format_}, this version of Clearhead reads {FORMAT}"


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, write: Callable[[Path], object]) -> None:
    path.touch()
    mode = path.stat().st_mode
    write(path)
    path.chmod(mode)


def _same(first: Path, second: Path) -> bool:
    manifests = [folder / MANIFEST for folder in (first, second)]
    return damage(second) is None and manifests[0].read_bytes() == manifests[1].read_bytes()


def _flush_file(path: Path) -> None:
    with path.open("rb+") as file:  # Windows flushes only what is open for writing
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    if os.name == "nt":
        return  # Windows has no handle to flush; its file system journals the rename
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
