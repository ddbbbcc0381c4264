"""Every planted fault is found by its name and in its place, and no host is suspected of anything."""

from pathlib import Path

import pytest
from doctor_helpers import NAMES, as_it_came, made, write
from more_mutants import ALL_MORE
from mutants import MUTANTS, Mutant

from clearhead.doctor import Report, check

EVERY = [*MUTANTS, *ALL_MORE]
NAMED = [f"{m.host}-{m.id}-{number}" for number, m in enumerate(EVERY)]


def examined(folder: Path, mutant: Mutant) -> Report:
    """What can find the fault, and what that rests on; the benchmark makes all checks of every mutant."""
    return check(made(write(folder, mutant.host, *mutant.changes)), level=mutant.level, only=[mutant.id])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("host", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_healthy_hosts_are_healthy(host: str, seed: int, tmp_path: Path) -> None:
    report = check(made(write(tmp_path, host)), level="standard", seed=seed) if seed else as_it_came(host)
    assert report.verdict == "healthy", str(report)
    assert not report.findings, str(report)
    assert not [c for c in report.checks if c.status == "blocked" or "could not be made" in c.note], str(report)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mutant", EVERY, ids=NAMED)
def test_every_planted_fault_is_found(mutant: Mutant, tmp_path: Path) -> None:
    report = examined(tmp_path, mutant)
    assert mutant.id in report, str(report)
    found = report[mutant.id]
    assert found.evidence.witness
    if mutant.module is not None:
        assert mutant.module in (found.where.module or ""), str(report)
    if found.where.line is not None and found.where.file and found.where.file.startswith(str(tmp_path)):
        assert 0 < found.where.line <= len(Path(found.where.file).read_text(encoding="utf-8").splitlines())


def test_there_are_forty_of_them_over_five_hosts() -> None:
    assert len(MUTANTS) >= 40
    assert len({mutant.host for mutant in MUTANTS}) >= 5
    assert len({mutant.id for mutant in MUTANTS}) >= 35
