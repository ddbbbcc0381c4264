"""A report in a file, in each form that a person or a program asks for. Imports no torch."""

from collections.abc import Callable, Mapping
from pathlib import Path

from clearhead.doctor.report import junit, page, sarif
from clearhead.doctor.report.report import Report
from clearhead.errors import DataError, UsageError

FORMS: Mapping[str, Callable[[Report], str]] = {"report": page.render, "junit": junit.render, "sarif": sarif.render}


def refuse_unwritable(files: Mapping[str, str]) -> None:
    """See that files can be where they are wanted, before anything slow is done.

    Args:
        files: a form of FORMS -> where.

    Raises:
        UsageError: the folder is not there, or it is a folder itself.
    """
    for form, file in files.items():
        path = Path(file)
        if path.is_dir() or not path.parent.is_dir():
            reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
            raise UsageError(f"--{form} cannot be written to {file}: {reason}")


def write(report: Report, files: Mapping[str, str]) -> None:
    """The report in every form that was asked for.

    Raises:
        DataError: a file cannot be written.
    """
    for form, file in files.items():
        try:
            Path(file).write_text(FORMS[form](report), encoding="utf-8", newline="\n")
        except OSError as error:
            raise DataError(f"--{form} cannot be written to {file}: {error.strerror or error}") from None
