"""Every planted fault of a training is found, by its id, first, and as surely as it can be known."""

from pathlib import Path

import pytest
from planted import PLANTED, Planted
from training_loops import watched, written

NAMED = [f"{planted.id}-{planted.host}-{number}" for number, planted in enumerate(PLANTED)]


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns of some of them itself
@pytest.mark.parametrize("planted", PLANTED, ids=NAMED)
def test_every_planted_fault_is_found(planted: Planted, tmp_path: Path) -> None:
    report = watched(written(tmp_path, planted.host, *planted.changes))
    assert report.findings, str(report)
    assert report.findings[0].id == planted.id, str(report)
    assert report.findings[0].status == planted.status, str(report)
    assert report.findings[0].evidence.witness
    assert not [check for check in report.checks if "could not be made" in check.note], str(report)
    assert not any("not written down" in path for path in report.paths), str(report)


def test_there_are_many_of_them() -> None:
    assert len(PLANTED) >= 60
    assert len({planted.id for planted in PLANTED}) >= 35
    assert len({planted.host for planted in PLANTED}) >= 10
