"""Training loops of many styles, all of them right: the doctor has nothing to say."""

from pathlib import Path

import pytest
from training_loops import NAMES, watched, written


@pytest.mark.parametrize("host", NAMES)
def test_a_healthy_loop_is_left_in_peace(host: str, tmp_path: Path) -> None:
    report = watched(written(tmp_path, host))
    assert report.verdict == "healthy", str(report)
    assert not report.findings, str(report)
    assert not [c for c in report.checks if c.status == "blocked" or "could not be made" in c.note], str(report)
    assert not any("not written down" in path for path in report.paths), str(report)
