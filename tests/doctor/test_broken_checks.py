"""A check that raises is no check that has nothing to say: the report tells so, in every form."""

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from doctor_helpers import HOSTS, made
from schema_helpers import problems

from clearhead.doctor import Finding, Report, check, examination
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.reports import page, sarif

SCHEMA: dict[str, Any] = json.loads(files("clearhead.doctor.reports").joinpath("schema.json").read_text("utf-8"))
ERROR = "could not be made (KeyError: 'a mistake of ours')"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """Of a healthy model; the check of norms raises."""

    def raises(patient: object) -> list[Finding]:
        raise KeyError("a mistake of ours")

    broken = [replace(one, run=raises) if one.name == "norms" else one for one in CHECKS]
    monkeypatch.setattr(examination, "CHECKS", tuple(broken))
    return check(made(HOSTS / "gpt.py"), only=["norms", "caches"])


def test_to_a_person(report: Report) -> None:
    *lines, told, last = str(report).splitlines()
    assert told == f"  broke     norms {ERROR}: N01 N02 N06 were not looked for"
    assert last.startswith("GPT is healthy, 1 check could not be made (causal,")
    (skipped,) = [line for line in lines if line.startswith("  skipped")]
    assert "caches" in skipped
    assert "norms" not in skipped
    assert "1 check could not be made" in page.render(report)


def test_to_a_program(report: Report) -> None:
    told = json.loads(json.dumps(report.as_json()))
    assert (told["verdict"], told["broken"]) == ("healthy", ["norms"])
    assert not list(problems(told, SCHEMA, SCHEMA))
    assert Report.from_json(told).broken == ("norms",)
    (run,) = json.loads(sarif.render(report))["runs"]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [note["message"]["text"] for note in notes if note["level"] == "warning"] == [f"norms: skip, {ERROR}"]
