"""A report in a file, in each form that can be requested. Imports no torch."""

from collections.abc import Callable, Mapping
from pathlib import Path

from clearhead.doctor.report import junit, page, sarif
from clearhead.doctor.report.report import Report
from clearhead.errors import DataError, UsageError

FORMS: Mapping[str, Callable[[Report], str]] = {"report": page.render, "junit": junit.render, "sarif": sarif.render}


def refuse_unwritable(files: Mapping[str, str]) -> None:
    """Check that files can be written, before anything slow is done.

    Args:
        files: a form of FORMS -> a path.

    Raises:
        UsageError: the folder does not exist, or the path is a folder.
    """
    for form, file in files.items():
        path = Path(file)
        if path.is_dir() or not path.parent.is_dir():
            reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise UsageError(f"--{form} cannot be written to {file}: {reason}")


def write(report: Report, files: Mapping[str, str]) -> None:
    """Write the report in every form that was requested.

    Raises:
        DataError: a file cannot be written.
    """
    for form, file in files.items():
        try:
            Path(file).write_text(FORMS[form](report), encoding="utf-8", newline="\n")
        except OSError as error:
            raise DataError(f"--{form} cannot be written to {file}: {error.strerror or error}") from None
