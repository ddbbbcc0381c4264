"""Find a run by its folder or its name, or the newest that can serve."""

import os
from pathlib import Path

from clearhead.errors import ArgumentError, DataError
from clearhead.files import RUN_CONFIG
from clearhead.options import shown
from clearhead.suggestions import did_you_mean
from clearhead.wording import call, listed, with_article
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.paths import RUNS, find_folder, run_folders

NONE_HERE = f", and none here yet; {call('train')} makes one"


def open_folder(which: str | Path | RunFolder | None, *, to_resume: bool = False) -> RunFolder:
    """Find a run by its folder or its name under `runs`; None: the newest that can be used.

    Raises:
        DataError: there is no such run.
    """
    if isinstance(which, RunFolder):
        return which
    if which is None:
        return newest_run(to_resume=to_resume)
    if not isinstance(which, str | os.PathLike):
        raise ArgumentError(
            f"a run is a folder, a name, or None for the newest, not {with_article(type(which).__name__)}"
        )
    runs, match = all_runs(), find_run(which)
    if match:
        return match
    if os.path.isdir(which):  # unlike Path.is_dir, no error where the name is too long
        raise DataError(f"{which} is not a run: it has no {RUN_CONFIG}")
    hint = did_you_mean(str(which), [run.name for run in runs]) or (f"; {runs_here()}" if runs else NONE_HERE)
    raise DataError(f"there is no run {shown(str(which))}{hint}")


def newest_run(*, to_resume: bool = False) -> RunFolder:
    """The run that was written to last, of those that have a model; of all where none has.

    Args:
        to_resume: of those that were trained here, whether they have a model yet or not.

    Raises:
        DataError: there is no run.
    """
    runs = all_runs()
    if not runs:
        raise DataError(runs_here())
    return next((run for run in runs if _is_usable(run, to_resume)), runs[0])


def _is_usable(run: RunFolder, to_resume: bool) -> bool:
    try:
        imported = run.imported_from is not None
    except DataError:
        return False
    return not imported if to_resume else run.has_model


def runs_here() -> str:
    """Which runs there are under `runs`, the newest first, for a sentence."""
    names = [run.name for run in all_runs()]
    return f"the runs here are {listed(names, 5)}" if names else f"there is no run here yet; {call('train')} makes one"


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
