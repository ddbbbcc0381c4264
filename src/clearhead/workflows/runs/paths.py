"""Where runs are, by folder and by name. Imports no torch."""

from pathlib import Path

from clearhead.files import RUN_CONFIG
from clearhead.workflows.runs.digests import has_model

RUNS = Path("runs")  # where runs are made and looked for, under the current folder


def find_folder(which: str | Path) -> Path | None:
    """The folder of a run, from a path or a name under `runs`, or None."""
    try:
        return next((folder for folder in (Path(which), RUNS / which) if (folder / RUN_CONFIG).is_file()), None)
    except OSError:  # a prompt may be too long for a name
        return None


def run_folders() -> list[Path]:
    """The runs under `runs`, the one that was written to last first."""
    folders = [path.parent for path in RUNS.glob(f"*/{RUN_CONFIG}")]
    return sorted(folders, key=_last_written, reverse=True)


def newest_folder() -> Path | None:
    """The run that was written to last, of those that have a model; of all where none has; None where there is none."""
    folders = run_folders()
    return next(filter(has_model, folders), next(iter(folders), None))


def _last_written(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder / RUN_CONFIG, folder / "metrics.jsonl") if path.exists())
