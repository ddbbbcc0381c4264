"""A check that raises is no check that has nothing to say: the report tells so, in every form."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from doctor_helpers import HOSTS, made
from schema_helpers import problems

from clearhead.doctor import Finding, Report, check, examination
from clearhead.doctor.checks import CHECKS
from clearhead.doctor.report import junit, page, sarif
from clearhead.errors import DataError

SCHEMA: dict[str, Any] = json.loads(files("clearhead.doctor.report").joinpath("schema.json").read_text("utf-8"))
ERROR = "could not be made (KeyError: 'a mistake of ours')"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """Of a healthy model; the check of norms raises."""

    def raises(subject: object) -> list[Finding]:
        raise KeyError("a mistake of ours")

    broken = [replace(one, run=raises) if one.name == "norms" else one for one in CHECKS]
    monkeypatch.setattr(examination, "CHECKS", tuple(broken))
    return check(made(HOSTS / "gpt.py"))


def test_to_a_person(report: Report) -> None:
    first, *lines = str(report).splitlines()
    assert first.startswith("GPT was examined in part, and no fault was found there; 1 check could not be made;")
    assert f"  broke     norms {ERROR}: N01 N02 N06 were not looked for" in lines
    (skipped,) = [line for line in report.text(verbose=True).splitlines() if line.startswith("  skipped")]
    assert "caches" in skipped
    assert "norms" not in skipped
    assert "1 check could not be made" in page.render(report)
    with pytest.raises(DataError, match="1 check could not be made"):
        report.raise_if_failed()


def test_to_a_program(report: Report) -> None:
    told = json.loads(json.dumps(report.as_json()))
    assert (told["verdict"], told["broken"]) == ("partial", ["norms"])
    assert report.exit_code == 3
    assert not list(problems(told, SCHEMA, SCHEMA))
    assert Report.from_json(told).broken == ("norms",)
    (run,) = json.loads(sarif.render(report))["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert ET.fromstring(junit.render(report)).get("errors") == "1"
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [note["message"]["text"] for note in notes if note["level"] == "warning"] == [f"norms: skip, {ERROR}"]
