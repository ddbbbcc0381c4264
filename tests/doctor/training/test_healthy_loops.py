"""Training loops of many styles, all of them right: the doctor has nothing to say."""

from pathlib import Path

import pytest
import torch
from training_loops import HOSTS, NAMES, loaded, watched, written

from clearhead.doctor import watch

STYLES = loaded(HOSTS / "styles.py").STYLES


@pytest.mark.parametrize("host", NAMES)
def test_a_healthy_loop_is_left_in_peace(host: str, tmp_path: Path) -> None:
    report = watched(written(tmp_path, host))
    assert report.verdict == "healthy", str(report)
    assert not report.findings, str(report)
    assert not [c for c in report.checks if c.status == "blocked" or "could not be made" in c.note], str(report)
    assert not any("not written down" in path for path in report.paths), str(report)


@pytest.mark.parametrize("name", STYLES)
def test_so_is_every_other_kind_of_training(name: str) -> None:
    torch.manual_seed(0)
    with watch() as seen:
        STYLES[name]()
    report = seen.report()
    assert report.verdict == "healthy", str(report)
    assert not report.findings, str(report)
    assert not [check for check in report.checks if "could not be made" in check.note], str(report)
    assert not seen.event_log.problems
