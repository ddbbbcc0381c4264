"""What says that a run's files are what was written: a digest in clearhead.toml, a manifest of the model's files.

A training replaces the model's files one after the other, and somebody may be reading them. So before the first one is
replaced the manifest lists the new digests beside the old ones: at every instant, also after a crash, each file is one
of those that are listed.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from clearhead.files import FORMAT, MANIFEST, move_into, read_manifest, sha256, write_manifest

WEIGHTS = "model.safetensors"
MARK = "# sha256 of the lines above: "
MAX_LOOKS = 100  # at a manifest that a training replaces meanwhile


class Version(TypedDict):
    """A state of the model's files: the step after which it was saved, and the digest of each file by its name."""

    step: int
    sha256: dict[str, str]


def add_digest(text: str) -> str:
    """Append a line with its SHA-256 to the text."""
    return f"{text}{MARK}{hashlib.sha256(text.encode('utf-8')).hexdigest()}\n"


def digest_matches(sealed: bytes) -> bool:
    """Whether a text is what `add_digest` gave."""
    text, _, _ = sealed.rpartition(MARK.encode())
    return sealed == add_digest(text.decode("utf-8", errors="replace")).encode("utf-8")


def replace_model(folder: Path, temporary: Path, beside: Iterable[str], *, step: int) -> None:
    """Put the model's files, from a temporary folder, in the place of those in a run's folder.

    Args:
        folder: the run's.
        temporary: goes.
        beside: names of files in the run's folder that belong to the model as well.
        step: after which the model is saved.
    """
    files = [*temporary.iterdir(), *(folder / name for name in beside if (folder / name).is_file())]
    new: Version = {"step": step, "sha256": {path.name: sha256(path) for path in sorted(files)}}
    try:
        before = _versions(folder)
    except (OSError, ValueError, KeyError, TypeError):
        before = []
    _write_versions(folder, [*before, new])
    move_into(folder, temporary)
    _write_versions(folder, [new])


def first_altered(folder: Path, names: Iterable[str]) -> str | None:
    """The first of these files that is not as the manifest lists it, where there is a manifest; None if all are."""
    try:
        versions = _versions(folder)
        for name in names:
            digests = [version["sha256"][name] for version in versions if name in version["sha256"]]
            if digests and not ((folder / name).is_file() and sha256(folder / name) in digests):
                return name
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return None


def has_model(folder: Path) -> bool:
    """Whether a model was saved there, all of its files, whatever became of them since."""
    try:
        return all((folder / name).is_file() for name in _versions(folder)[-1]["sha256"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return False


def check_model_files(folder: Path) -> tuple[str | None, int]:
    """What is wrong with the model's files, or None; and after which step the weights were saved, -1 if nobody knows.

    A manifest that changed meanwhile is looked at again: a training beside this process is no damage.
    """
    for _ in range(MAX_LOOKS):
        before = _identity(folder)
        fault, step = _compare(folder)
        if fault is None or _identity(folder) == before:
            break
    return fault, step


def _compare(folder: Path) -> tuple[str | None, int]:
    try:
        versions = _versions(folder)
        digests = {name: sha256(folder / name) for name in versions[-1]["sha256"] if (folder / name).is_file()}
        for name in versions[-1]["sha256"]:
            if name not in digests:
                return f"{name} is missing", -1
            if digests[name] not in [version["sha256"].get(name) for version in versions]:
                return f"{name} was altered or cut off", -1
        steps = [int(version["step"]) for version in versions if version["sha256"][WEIGHTS] == digests[WEIGHTS]]
    except FileNotFoundError:
        return f"{MANIFEST} is missing", -1
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return f"{MANIFEST} was altered or cut off", -1
    return None, steps[-1]


def _identity(folder: Path) -> bytes | None:
    try:
        return (folder / MANIFEST).read_bytes()
    except OSError:
        return None


def _versions(folder: Path) -> list[Version]:
    return list(read_manifest(folder)["versions"])


def _write_versions(folder: Path, versions: list[Version]) -> None:
    write_manifest(folder, {"format": FORMAT, "versions": versions})
