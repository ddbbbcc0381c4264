"""Make the folder of a new run, and write over nothing."""

from itertools import count
from pathlib import Path

from clearhead import files
from clearhead.errors import ClearheadError, UsageError
from clearhead.wording import call
from clearhead.workflows.runs.folder import LOCK, TEXT, TOKENIZER, RunFolder
from clearhead.workflows.runs.paths import RUNS

# Files that do not make a folder count as occupied.
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
            f"{chosen} already holds a run; {call('resume', chosen)} goes on with it, or choose another `out`"
        )
    present = {path.name for path in chosen.iterdir()} - BEFORE_IT_BEGINS
    ours = (chosen / TEXT).is_file() and present <= {
        TEXT,
        files.UNFINISHED + "tokenizer",
        *TOKENIZER,
        files.UNFINISHED + files.RUN_CONFIG,
    }  # a crash came early
    if present and not ours:
        raise UsageError(f"{chosen} is not empty, and a run would write over what is there; choose another `out`")
    return RunFolder(chosen), is_new


def _make(folder: Path) -> bool:
    """Make the folder; return False if it exists. Of two processes, only one succeeds."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        if folder.is_dir():
            return False
        raise ClearheadError(f"the run cannot be made in {folder}, which is a file; choose another `out`") from None
    except OSError as error:
        raise ClearheadError(f"the run cannot be made in {folder} ({error.strerror}); choose another `out`") from None
    return True
