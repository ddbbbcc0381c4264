"""What a person types to name a model: which form it has. Imports no torch."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clearhead.errors import DataError, UsageError

FILE = re.compile(r"(?P<location>.+\.py)(:(?P<name>[^:/\\]*))?")  # greedy: a colon of the path stays with the path
MODULE = re.compile(r"(?P<location>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)")
FORMS = "file.py:build, package.module:build, hf:NAME or a run"


@dataclass(frozen=True)
class Target:
    """Where a model comes from: a Python file, a module, an architecture of transformers, its checkpoint, or a run."""

    kind: Literal["file", "module", "architecture", "checkpoint", "run"]
    location: str  # the file, module, architecture or folder
    name: str = ""  # of what makes the model; empty if the usual names are to be tried, or if nothing has a name


def read(typed: str, find_run: Callable[[str], Path | None] = lambda typed: None) -> Target:
    """Which model 'file.py', 'file.py:name', 'package.module:name', 'hf:NAME', 'hf:FOLDER' or a run means.

    Args:
        typed: see above. Nothing is loaded; files and folders are only checked to exist.
        find_run: from a folder or a name to a run's folder. A run may have any name, so it is tried first.

    Raises:
        UsageError: the words make no sense.
        DataError: something has that name, and it is not a model.
    """
    if typed.startswith("hf:"):
        return _of_transformers(typed[3:])
    run = find_run(typed)
    if run is not None:
        return Target("run", str(run))
    path = Path(os.path.expanduser(typed))
    if typed and path.is_dir():
        hint = f"name a file in it, as in {os.path.join(typed, 'model.py')}:build"
        if (path / "config.json").is_file():
            hint = f"'hf:{typed}' reads it as a checkpoint of transformers"
        raise DataError(f"{typed} is a folder and not a run; {hint}")
    if path.suffix == ".py" and path.is_file():  # a colon may be part of the path
        return Target("file", str(path))
    file = FILE.fullmatch(typed)
    if file:
        return Target("file", os.path.expanduser(file["location"]), file["name"] or "")
    module = MODULE.fullmatch(typed)
    if module:
        return Target("module", module["location"], module["name"])
    if path.is_file():
        raise DataError(f"{typed} is not a Python file; say {FORMS}")
    raise UsageError(f"'{typed}' names no model; say {FORMS}")


def _of_transformers(name: str) -> Target:
    if not name:
        raise UsageError("hf: needs an architecture, as in hf:llama, or a folder with a checkpoint")
    folder = os.path.expanduser(name)
    return Target("checkpoint", folder) if os.path.isdir(folder) else Target("architecture", name)
