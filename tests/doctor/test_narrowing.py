"""No narrowed examination denies what the whole one finds: each planted fault, under each symptom and each --only."""

import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch
from doctor_helpers import made, write
from faults import all_faults
from faults import write as write_fault
from more_mutants import ALL_MORE
from mutants import MUTANTS
from narrowing import Examined, denials, examined

from clearhead.doctor import check
from clearhead.doctor.catalogue.symptoms import SYMPTOMS, diagnose
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.load.loading import load
from clearhead.doctor.report.report import Report
from clearhead.errors import DataError, FaultError

TRIANGLE = ("torch.tril(torch.ones(BLOCK, BLOCK))", "torch.triu(torch.ones(BLOCK, BLOCK))")
NAN = ("        x = self.tok(idx) +", "        x = float('nan') * self.tok(idx) +")
NOT_FOUND = {"alibi/branches-not-scaled", "nano/branches-not-scaled"}  # by the whole examination either
Planted = tuple[tuple[str, ...], Callable[[Path], torch.nn.Module]]


def planted() -> dict[str, Planted]:
    """Every fault of the benchmark and of these tests: the ids that describe it, and the model."""
    told: dict[str, Planted] = {}
    for fault in all_faults():
        told[fault.title] = (fault.id, *fault.also), lambda to, fault=fault: load(f"{write_fault(fault, to)}:build")  # type: ignore[misc]
    for number, one in enumerate([*MUTANTS, *ALL_MORE]):
        name = f"tests {one.host}/{one.id}-{number}"
        told[name] = (one.id,), lambda to, one=one: made(write(to, one.host, *one.changes))  # type: ignore[misc]
    return told


PLANTED = planted()
BY_HOST: dict[str, list[str]] = defaultdict(list)
for title in PLANTED:
    BY_HOST[title.partition("/")[0]].append(title)


def part(title: str) -> str:
    """Which of two halves a fault belongs to: what was mended was mended by the open one, and measured by the other."""
    return ("open", "locked")[hashlib.sha256(title.encode()).digest()[0] % 2]


SAMPLE = [title for title in PLANTED if part(title) == "open" and hashlib.sha256(title.encode()).digest()[1] < 8]


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])  # targets add their folder


def whole(title: str, folder: Path) -> Examined:
    torch.manual_seed(0)
    return examined(PLANTED[title][1](folder), "standard")


def denied(title: str, folder: Path) -> list[str]:
    seen = whole(title, folder)
    assert seen.report.findings or title in NOT_FOUND, f"{title} is not found"
    covers = {one.name: {*one.covers} for one in CHECKS}
    told = [f"{title}: {one}" for one in denials(seen, PLANTED[title][0])]
    for name, answers in seen.answers.items():
        findings = chain.from_iterable(answer for answer in answers if isinstance(answer, list))
        causes = {cause.id for one in findings for cause in one.causes}
        told += [f"{title}: '{name}' names {id}, and does not say that it covers it" for id in causes - covers[name]]
    return told


@pytest.mark.sampled(3)
@pytest.mark.parametrize("title", SAMPLE)
def test_some_faults_are_denied_by_no_narrowed_examination(title: str, tmp_path: Path) -> None:
    assert not denied(title, tmp_path)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # torch has an opinion on one of the faults
@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("half", ["open", "locked"])
@pytest.mark.parametrize("host", BY_HOST)
def test_no_fault_is_denied_by_a_narrowed_examination(host: str, half: str, tmp_path: Path) -> None:
    titles = [title for title in BY_HOST[host] if part(title) == half]
    told = {title: denied(title, tmp_path) for title in titles}
    lines = [line for one in told.values() for line in one]
    assert not lines, f"{sum(map(bool, told.values()))} of {len(titles)} faults are denied: {lines[:20]}"


def statuses(report: Report) -> list[tuple[str, str, str]]:
    return [(one.name, one.status, one.note) for one in report.checks]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("title", SAMPLE[:2])
def test_what_is_measured_again_is_what_the_whole_examination_measured(title: str, tmp_path: Path) -> None:
    seen = whole(title, tmp_path)
    torch.manual_seed(0)
    model = PLANTED[title][1](tmp_path)
    for id in (*PLANTED[title][0][:1], "M01", "L03"):
        report = check(model, level="standard", only=[id])
        assert statuses(report) == statuses(seen.narrowed(id))
        assert [one.id for one in report.findings] == [one.id for one in seen.narrowed(id).findings]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("only", [["M01"], ["M06", "K01"], ["paths"], ["P01"]], ids=str)
def test_the_wrong_triangle_is_met_by_whatever_rests_on_it(only: list[str], tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", TRIANGLE)), only=only)
    assert report.verdict == "faulty"
    assert report.exit_code == 4
    assert [finding.id for finding in report.findings] == ["M04"]
    with pytest.raises(FaultError, match="M04"):
        report.raise_if_failed()


def test_no_symptom_denies_the_wrong_triangle(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", TRIANGLE)))
    for symptom in SYMPTOMS.values():
        diagnosis = diagnose(symptom, report)
        text = "\n".join(line for line, _ in diagnosis.lines())
        assert diagnosis.summary == f"{symptom.title}: M04, the mask is the wrong triangle"
        assert "each logit depends on the tokens that it should" not in text
        assert not [cause for cause in diagnosis.causes if cause.answer == "no"]
        assert symptom.otherwise not in text


def test_nan_is_not_said_to_be_a_number(tmp_path: Path) -> None:
    report = check(made(write(tmp_path, "gpt", NAN)))
    assert report.verdict == "faulty"
    text = "\n".join(line for line, _ in diagnose(SYMPTOMS["nan"], report).lines())
    assert "every logit is a number" not in text


def test_healthy_is_said_of_a_whole_examination_alone(tmp_path: Path) -> None:
    model = made(write(tmp_path, "gpt"))
    assert check(model).verdict == "healthy"
    part = check(model, only=["M01"])
    assert (part.verdict, part.exit_code) == ("partial", 0)
    assert part.summary.startswith("GPT was examined in part, and no fault was found there; only M01 was looked for;")
    assert "healthy" not in str(part)
    part.raise_if_failed()


def test_what_was_asked_for_and_could_not_be_examined_is_no_all_clear(tmp_path: Path) -> None:
    model = made(write(tmp_path, "gpt"))
    unknown = check(model, only=["K01"])
    assert (unknown.verdict, unknown.exit_code) == ("unknown", 3)
    open_ = next(line for line in str(unknown).splitlines() if line.startswith("  open      K01"))
    assert "it takes no cache" in open_
    with pytest.raises(DataError, match="could not be judged"):
        unknown.raise_if_failed()
    late = check(model, seconds=0)
    assert (late.verdict, late.exit_code) == ("unknown", 3)
    assert "no time was left" in str(late)


def test_a_failure_is_told_in_the_place_of_a_warning() -> None:
    from clearhead.doctor.checks.base import finding, joined

    warned = joined([], [finding("P01", "a sign of it", status="warn")], "gradients", {})
    failed = joined(warned, [finding("P01", "a proof of it")], "positions", {})
    assert [(one.status, one.check) for one in failed] == [("fail", "positions")]
    assert joined(failed, [finding("P01", "a sign of it", status="warn")], "gradients", {}) == failed
    assert joined(failed, [finding("P02", "allowed")], "rows", {"P02": "why"}) == failed
