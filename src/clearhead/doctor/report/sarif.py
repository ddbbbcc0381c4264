"""A report as SARIF 2.1.0, with which a code host shows a finding on its line. Imports no torch."""

import hashlib
import json
import os
from pathlib import Path
from urllib.parse import quote

from clearhead import __version__
from clearhead.doctor.catalogue.faults import CATALOGUE, CatalogueEntry
from clearhead.doctor.report.findings import Finding
from clearhead.doctor.report.records import Json
from clearhead.doctor.report.report import Report
from clearhead.pages import printable

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "SRCROOT"  # the folder that relative paths start from: where the command was called
LEVELS = {"fail": "error", "warn": "warning"}


def render(report: Report) -> str:
    """The JSON of one run, with the whole catalogue as its rules."""
    here = Path.cwd()
    run: Json = {
        "tool": {
            "driver": {
                "name": "Clearhead doctor",
                "semanticVersion": __version__,
                "rules": [_rule(entry) for entry in CATALOGUE.values()],
            }
        },
        "originalUriBaseIds": {ROOT: {"uri": here.as_uri().rstrip("/") + "/"}},
        "columnKind": "utf16CodeUnits",
        "invocations": [
            {
                "executionSuccessful": not report.unjudged,
                "toolExecutionNotifications": [
                    {
                        "level": "warning" if check.broke else "note",
                        "message": {"text": f"{check.name}: {check.status}, {check.note}"},
                    }
                    for check in report.checks
                    if check.status in ("skip", "blocked", "waived")
                ],
            }
        ],
        "results": [_result(report, finding, here) for finding in report.findings],
        "properties": {
            "target": report.target,
            "kind": report.kind,
            "verdict": report.verdict,
            "summary": report.summary,
            "only": list(report.only),
        },
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(entry: CatalogueEntry) -> Json:
    return {
        "id": entry.id,
        "name": "".join(word.capitalize() for word in "".join(c if c.isalnum() else " " for c in entry.title).split()),
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": f"{entry.mechanism}. Symptom: {entry.symptom}."},
        "help": {"text": f"{entry.fix}\n\nThe smallest change that shows it:\n{entry.mutant}"},
        "defaultConfiguration": {"level": "error"},
    }


def _result(report: Report, finding: Finding, here: Path) -> Json:
    evidence = finding.evidence
    return {
        "ruleId": finding.id,
        "ruleIndex": list(CATALOGUE).index(finding.id),
        "level": LEVELS[finding.status],
        "message": {"text": f"{finding.title}: {evidence.witness}. Why: {finding.why}. Fix: {finding.fix}."},
        "locations": [location for location in [_location(report, finding, here)] if location],
        "partialFingerprints": {"clearheadFinding/v1": _fingerprint(report, finding, here)},
        "properties": {
            "evidence": finding.as_json()["evidence"],
            "repro": finding.repro,
        },
    }


def _location(report: Report, finding: Finding, here: Path) -> Json:
    """The line, if one is known; else the file that was examined. The module's path stands beside it."""
    location: Json = {}
    examined, is_file, _ = report.target.partition(".py:")
    file = finding.where.file or (f"{examined}.py" if is_file else None)
    if file is not None:
        region = {"startLine": finding.where.line or 1}
        location["physicalLocation"] = {"artifactLocation": _artifact(file, here), "region": region}
    if finding.where.module:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.where.module, "kind": "member"}]
    return location


def _artifact(file: str, here: Path) -> Json:
    path = Path(os.path.abspath(printable(file)))
    if path.is_relative_to(here):
        return {"uri": quote(path.relative_to(here).as_posix()), "uriBaseId": ROOT}
    return {"uri": path.as_uri()}


def _fingerprint(report: Report, finding: Finding, here: Path) -> str:
    """The same for the same fault, even if lines were added above it."""
    file = finding.where.file
    identity = (finding.id, finding.where.module or "", _artifact(file, here)["uri"] if file else report.target)
    return hashlib.sha256("\n".join(identity).encode("utf-8", "replace")).hexdigest()[:32]
