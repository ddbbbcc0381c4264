"""Where runs are: made, found by name, listed."""

import os
from itertools import count
from pathlib import Path

from clearhead import files
from clearhead.errors import ClearheadError, DataError, UsageError, did_you_mean
from clearhead.workflows.folders import RUNS, find_folder, run_folders
from clearhead.workflows.run_folder import LOCK, TEXT, TOKENIZER, RunFolder

# What may stand in a folder without any sign that it is ours.
BEFORE_IT_BEGINS = {LOCK, files.UNFINISHED + TEXT, "tensorboard"}


def create(folder: Path | None, stem: str) -> tuple[RunFolder, bool]:
    """Create an empty run; also return whether its folder is new.

    Args:
        folder: where; by default runs/STEM-N with the first N that is free.
        stem: see above.

    Raises:
        UsageError: there is something in the folder already.
        ClearheadError: it cannot be made.
    """
    chosen = folder or next(RUNS / f"{stem}-{number}" for number in count(1) if _make(RUNS / f"{stem}-{number}"))
    is_new = folder is None or _make(folder)
    if RunFolder(chosen).has_begun:
        raise UsageError(
            f"{chosen} already holds a run; 'clearhead resume {chosen}' goes on with it, or choose another --out"
        )
    present = {path.name for path in chosen.iterdir()} - BEFORE_IT_BEGINS
    ours = (chosen / TEXT).is_file() and present <= {
        TEXT,
        files.UNFINISHED + "tokenizer",
        *TOKENIZER,
        files.UNFINISHED + files.RUN_CONFIG,
    }  # a crash came early
    if present and not ours:
        raise UsageError(f"{chosen} is not empty, and a run would write over what is there; choose another --out")
    return RunFolder(chosen), is_new


def _make(folder: Path) -> bool:
    """Make the folder; return False if it exists. Of two processes, only one succeeds."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        if folder.is_dir():
            return False
        raise ClearheadError(f"the run cannot be made in {folder}, which is a file; choose another --out") from None
    except OSError as error:
        raise ClearheadError(f"the run cannot be made in {folder} ({error.strerror}); choose another --out") from None
    return True


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
        raise DataError(f"{which} is not a run: it has no {files.RUN_CONFIG}")
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
