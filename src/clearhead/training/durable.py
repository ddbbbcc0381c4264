"""Folders that are there whole or not at all, whatever is pulled: the process or the plug."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
FORMAT = 1  # raised when what a folder holds changes its meaning
UNFINISHED = ".unfinished-"  # a folder being written or removed; what bears this name after a crash is litter


def start_folder(final: Path) -> Path:
    """An empty folder beside `final` to write into; `finish_folder` gives it its name."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(UNFINISHED + final.name)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    return temporary


def finish_folder(temporary: Path, final: Path) -> None:
    """Write the manifest, flush every file to the disk, and rename: from one instant to the next `final` is whole."""
    files = {path.name: {"sha256": sha256(path), "bytes": path.stat().st_size} for path in sorted(temporary.iterdir())}
    write_json(temporary / MANIFEST, {"format": FORMAT, "files": files})
    for path in temporary.iterdir():
        _flush_file(path)
    _flush_folder(temporary)
    if final.exists() and _same(temporary, final):
        shutil.rmtree(temporary)
        return
    remove_folder(final)  # damaged, or of a past that was given up; a rename cannot replace a folder that is not empty
    temporary.rename(final)
    _flush_folder(final.parent)


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
        shutil.rmtree(path, ignore_errors=True)


def damage(folder: Path) -> str | None:
    """What is wrong with a finished folder, as the end of a sentence, or None when every byte is as it was written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        format_, files = manifest["format"], dict(manifest["files"])
        for name, written in files.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != written["bytes"]:
                return f"{name} has {path.stat().st_size} bytes instead of {written['bytes']}"
            if sha256(path) != written["sha256"]:
                return f"{name} was altered"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is missing or unreadable"
    return None if format_ == FORMAT else f"its format is {format_}, this version of Clearhead reads {FORMAT}"


def sha256(path: Path) -> str:
    """The file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Readable JSON; a NaN in it is a programming error."""
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _same(one: Path, other: Path) -> bool:
    manifests = [folder / MANIFEST for folder in (one, other)]
    return damage(other) is None and manifests[0].read_bytes() == manifests[1].read_bytes()


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
