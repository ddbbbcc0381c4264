"""A report in every form: the page, JUnit, SARIF, and the JSON against its schema."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from doctor_helpers import made, write
from page_reader import Page
from schema_helpers import problems

from clearhead.cli.doctor import FILES
from clearhead.doctor import Finding, Report, Spec, check
from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.report import junit, page, sarif
from clearhead.doctor.report.files import FORMS, refuse_unwritable
from clearhead.doctor.report.findings import Evidence, PossibleCause, Where, excerpt
from clearhead.doctor.report.verdict import Checked
from clearhead.errors import UsageError

HOSTILE = "<script>alert(1)</script>\" onload='x' & ]]> --> \x00\x1b[31m\x9b \ud800 {x} \r\n end"
SCHEMA: dict[str, Any] = json.loads(files("clearhead.doctor.report").joinpath("schema.json").read_text("utf-8"))
MASKING = ('        att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))\n', "")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A GPT without its mask, whose own positions are waived."""
    model = made(write(tmp_path_factory.mktemp("hosts"), "gpt", MASKING))
    return check(model, Spec(kind="causal", allow={"E04": "a joke"}))


CAUSES = (PossibleCause("M01", 0.7), PossibleCause("M03", 0.3))


def hostile() -> Report:
    evidence = Evidence(float("nan"), float("inf"), 0.0, HOSTILE)
    where = Where(HOSTILE, HOSTILE, HOSTILE, 3, HOSTILE, 1, HOSTILE)
    finding = Finding("M01", "fail", evidence, where, CAUSES, ("#!", "-."), HOSTILE, HOSTILE)
    checks = tuple(
        Checked("M01", HOSTILE, ("M01",), HOSTILE, status, HOSTILE, 1.5)
        for status in ("pass", "fail", "warn", "skip", "waived", "blocked")
    )
    return Report(HOSTILE, "causal", (finding, replace(finding, status="warn")), checks, (), (HOSTILE,), 0.25)


def test_the_command_has_an_option_for_every_form() -> None:
    assert set(FILES) == set(FORMS)


def test_the_page_tells_all_that_the_report_holds(faulty: Report) -> None:
    html = page.render(faulty)
    shown = Page(html)
    finding = faulty["M01"]
    for told in (finding.title, finding.evidence.witness, finding.why, finding.fix, finding.repro, *faulty.paths):
        assert told in shown.text
    assert finding.where.file is not None
    assert finding.where.line is not None
    line = Path(finding.where.file).read_text(encoding="utf-8").splitlines()[finding.where.line - 1].strip()
    assert line == "y = att @ v"
    assert line in shown.text
    for one in faulty.checks:
        assert f"{one.name}{one.status}" in shown.text
    for assumption in faulty.assumptions:
        assert assumption.value in shown.text
    assert dict(shown.elements)["html"]["lang"] == "en"
    assert [tag for tag, _ in shown.elements].count("h1") == 1


def test_the_picture_has_a_square_for_every_place(faulty: Report) -> None:
    picture = ("##!!.", "--...", "#####")
    finding = replace(faulty["M01"], picture=picture)
    html = page.render(replace(faulty, findings=(finding,)))
    for kind, count in (("legal", 7), ("illegal", 2), ("missing", 2), ("cell", 4)):
        squares = re.findall(rf'<path class="{kind}" d="((?:M[^M"]*){{2,}})"/>', html)  # in the legend there is one
        assert [path.count("M") for path in squares] == [count], kind
    assert 'role="img" aria-label="Which token moves which logits: 7 legal, 2 illegal, 2 missing"' in html
    assert {sign for row in faulty["M01"].picture for sign in row} == {"#", "!"}


def test_the_page_loads_nothing_and_runs_nothing(faulty: Report) -> None:
    for report in (faulty, hostile()):
        html = page.render(report)
        html.encode("utf-8")
        parsed = Page(html)
        assert "script" not in {tag for tag, _ in parsed.elements}
        assert not any(name.startswith("on") for _, attributes in parsed.elements for name in attributes)
        assert not set(map(chr, (*range(32), 0x9B))) - set("\t\n") & set(html)
        assert not re.findall(r"url\(|@import|src=", html.replace("&#x27;", "'").split("<main>")[0])
        assert "default-src 'none'" in html
        for tag, attributes in parsed.elements:
            assert "src" not in attributes
            assert (tag, attributes.get("href")) in {(tag, None), ("link", "data:,")}
    assert "<script>alert(1)</script>" in Page(page.render(hostile())).text


def test_a_healthy_model_has_a_page(tmp_path: Path) -> None:
    model = made(write(tmp_path, "gpt"))
    for only, verdict in (([], "healthy"), (["M01"], "partial")):
        html = page.render(check(model, only=only))
        assert f'class="verdict {verdict}"' in html
        assert "<article" not in html


def test_the_terminal_is_sent_no_control_characters() -> None:
    assert not set(map(chr, (*range(32), 0x7F, 0x9B))) - set("\t\n") & set(str(hostile()))
    assert str(hostile()).encode("utf-8")


def test_junit_has_a_case_for_every_check(faulty: Report) -> None:
    suites = ET.fromstring(junit.render(faulty))
    cases = suites.findall("./testsuite/testcase")
    assert [case.get("name") for case in cases] == [one.name for one in faulty.checks]
    by_name = {case.get("name"): case for case in cases}
    failure = by_name["dependencies"].find("failure")
    assert failure is not None
    assert failure.get("type") == "M01"
    assert "changing token" in (failure.text or "")
    for kind, statuses in (("failure", {"fail"}), ("skipped", {"skip", "waived", "blocked"})):
        named = {one.name for one in faulty.checks if one.status in statuses}
        assert {name for name, case in by_name.items() if case.find(kind) is not None} == named
    suite = suites[0]
    assert suite.get("tests") == str(len(cases))
    assert suite.get("failures") == str(len(suites.findall(".//failure")))
    assert suite.get("skipped") == str(len(suites.findall(".//skipped")))


def test_junit_can_be_read_whatever_names_are_in_it() -> None:
    suites = ET.fromstring(junit.render(hostile()))
    assert len(suites.findall(".//testcase")) == 6
    assert len(suites.findall(".//system-out")) == 1


def test_sarif_names_the_rule_and_the_line(faulty: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(faulty["M01"].where.file or "")
    monkeypatch.chdir(file.parent)
    told = json.loads(sarif.render(faulty))
    assert told["version"] == "2.1.0"
    run = told["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(CATALOGUE)
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == file.parent.as_uri() + "/"
    assert len(run["results"]) == len(faulty.findings)
    for result, finding in zip(run["results"], faulty.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.id
        assert result["level"] == {"fail": "error", "warn": "warning"}[finding.status]
        assert finding.evidence.witness in result["message"]["text"]
    place = run["results"][0]["locations"][0]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": file.name, "uriBaseId": "SRCROOT"},
        "region": {"startLine": faulty["M01"].where.line},
    }
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "blocks.0.attn"


SARIF: dict[str, Any] = {  # what the standard demands of the parts that are written here
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"enum": ["2.1.0"]},
        "runs": {"type": "array", "items": {"$ref": "#/$defs/run"}},
    },
    "$defs": {
        "message": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "run": {
            "type": "object",
            "required": ["tool", "results"],
            "properties": {
                "tool": {
                    "type": "object",
                    "required": ["driver"],
                    "properties": {"driver": {"$ref": "#/$defs/driver"}},
                },
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "invocations": {"type": "array", "items": {"$ref": "#/$defs/invocation"}},
                "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
            },
        },
        "driver": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "semanticVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
                "rules": {"type": "array", "items": {"$ref": "#/$defs/rule"}},
            },
        },
        "rule": {
            "type": "object",
            "required": ["id"],
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9]+$"},
                "shortDescription": {"$ref": "#/$defs/message"},
                "fullDescription": {"$ref": "#/$defs/message"},
                "help": {"$ref": "#/$defs/message"},
            },
        },
        "invocation": {"type": "object", "required": ["executionSuccessful"]},
        "result": {
            "type": "object",
            "required": ["message"],
            "properties": {
                "message": {"$ref": "#/$defs/message"},
                "level": {"$ref": "#/$defs/level"},
                "ruleIndex": {"type": "integer", "minimum": 0},
                "locations": {"type": "array", "items": {"$ref": "#/$defs/location"}},
            },
        },
        "location": {
            "type": "object",
            "properties": {
                "physicalLocation": {
                    "type": "object",
                    "required": ["artifactLocation"],
                    "properties": {
                        "artifactLocation": {
                            "type": "object",
                            "required": ["uri"],
                            "properties": {"uri": {"type": "string", "pattern": "^[A-Za-z0-9._~:/%@!$&'()*+,;=-]+$"}},
                        },
                        "region": {"type": "object", "properties": {"startLine": {"type": "integer", "minimum": 1}}},
                    },
                },
            },
        },
    },
}


def test_sarif_has_the_shape_that_the_standard_demands(faulty: Report) -> None:
    nowhere = replace(faulty["M01"], where=Where())
    by_file = replace(faulty, target="my models/mine.py:build", findings=(nowhere,))
    for report in (faulty, by_file, replace(by_file, target="hf:llama"), hostile()):
        told = json.loads(sarif.render(report), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert list(problems(told, SARIF, SARIF)) == []
    place = json.loads(sarif.render(by_file))["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place == {
        "artifactLocation": {"uri": "my%20models/mine.py", "uriBaseId": "SRCROOT"},
        "region": {"startLine": 1},
    }


def test_a_fingerprint_stays_when_lines_move(faulty: Report) -> None:
    def fingerprint(report: Report) -> str:
        told = json.loads(sarif.render(report))["runs"][0]["results"][0]["partialFingerprints"]
        return str(told["clearheadFinding/v1"])

    finding = faulty["M01"]
    moved = replace(faulty, findings=(replace(finding, where=replace(finding.where, line=99)),))
    other = replace(faulty, findings=(replace(finding, where=replace(finding.where, module="blocks.1.attn")),))
    assert fingerprint(moved) == fingerprint(faulty) != fingerprint(other)


def test_real_reports_are_as_the_schema_says(faulty: Report, tmp_path: Path) -> None:
    healthy = check(made(write(tmp_path, "translator")), only=["M01"])
    for report in (faulty, healthy):
        assert list(problems(json.loads(json.dumps(report.as_json())), SCHEMA, SCHEMA)) == []
    told = json.loads(json.dumps(hostile().as_json(), allow_nan=False))  # no NaN, which is no JSON
    assert list(problems(told, SCHEMA, SCHEMA)) == []
    assert json.loads(json.dumps(Report.from_json(told).as_json())) == told


@pytest.mark.parametrize("break_it", [
    lambda told: told.pop("verdict"),
    lambda told: told.update(verdict="fine"),
    lambda told: told.update(more=1),
    lambda told: told["findings"][0]["evidence"].update(value="much"),
    lambda told: told["findings"][0]["where"].update(line=0),
    lambda told: told["checks"][0].update(covers=["M1"]),
])  # fmt: skip
def test_the_schema_refuses_what_is_none(faulty: Report, break_it: Any) -> None:
    told = json.loads(json.dumps(faulty.as_json()))
    break_it(told)
    assert len(list(problems(told, SCHEMA, SCHEMA))) == 1


def test_a_finding_knows_its_check(faulty: Report) -> None:
    assert faulty["M01"].check == "dependencies"
    assert faulty["M01"] in faulty.of_check("dependencies")
    assert faulty.of_check("finite") == ()


@pytest.mark.parametrize("line", [0, 4, 10**9, None])
def test_lines_that_are_not_there_are_not_shown(line: int | None, tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("one\ntwo\nthree", encoding="utf-8")
    assert excerpt(str(path), line) is None
    shown = excerpt(str(path), 3)
    assert shown is not None
    assert (shown.first, shown.line, shown.lines) == (1, "three", ("one", "two", "three"))


@pytest.mark.parametrize("file", ["absent.py", "\0", "."])
def test_files_that_cannot_be_read_are_not_shown(file: str) -> None:
    assert excerpt(file, 1) is None


def test_a_file_that_cannot_be_written_is_refused_before_anything_slow(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        refuse_unwritable({"sarif": str(tmp_path / "absent" / "x.sarif")})
    with pytest.raises(UsageError, match="it is a folder"):
        refuse_unwritable({"report": str(tmp_path)})
