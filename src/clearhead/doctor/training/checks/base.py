"""What a check of a training is."""

from collections.abc import Callable
from dataclasses import dataclass

from clearhead.doctor.report.findings import Finding
from clearhead.doctor.training.recording import Recording


@dataclass(frozen=True)
class TrainingCheck:
    """One question to a recording.

    Args:
        id: the fault that it is named after.
        name: in a word.
        covers: every id that it can find.
        run: the findings; raises `Skipped`.
        needs: names of checks whose failure would make this one's answer worthless.
    """

    id: str
    name: str
    covers: tuple[str, ...]
    run: Callable[[Recording], list[Finding]]
    needs: tuple[str, ...] = ()
