"""Find a run by its folder or its name, or the newest."""

import os
from pathlib import Path

from clearhead.errors import DataError
from clearhead.files import RUN_CONFIG
from clearhead.suggestions import did_you_mean
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.paths import RUNS, find_folder, run_folders


def open_folder(which: str | Path | RunFolder | None) -> RunFolder:
    """Find a run by its folder or its name under `runs`; None: the one that was written to last.

    Raises:
        DataError: there is no such run.
    """
    if isinstance(which, RunFolder):
        return which
    runs = all_runs()
    if which is None:
        if not runs:
            raise DataError("there is no run here yet; 'clearhead train' makes one")
        return runs[0]
    match = find_run(which)
    if match:
        return match
    if os.path.isdir(which):  # unlike Path.is_dir, no error where the name is too long
        raise DataError(f"{which} is not a run: it has no {RUN_CONFIG}")
    hint = did_you_mean(str(which), [run.name for run in runs]) or "; 'clearhead list' shows them"
    raise DataError(f"there is no run '{which}'{hint}")


def run_and_text(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """Split two optional arguments into run and text.

    A single argument is a run if one has that name or it is a path in `runs`, else a text.
    """
    if first is None or second is not None:
        return first, second
    looks_like_one = Path(first).parent == RUNS
    return (first, None) if looks_like_one or find_run(first) else (None, first)


def find_run(which: str | Path) -> RunFolder | None:
    """The run of that folder or name, or None."""
    folder = find_folder(which)
    return None if folder is None else RunFolder(folder)


def all_runs() -> list[RunFolder]:
    """The runs under `runs`, the one that was written to last first."""
    return [RunFolder(folder) for folder in run_folders()]
