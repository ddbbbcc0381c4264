"""A report as JUnit XML, which every runner of tests on a server shows: one case for each check. Imports no torch."""

import xml.etree.ElementTree as ET

from clearhead.doctor.report.report import Report
from clearhead.doctor.report.text import of_finding
from clearhead.doctor.report.verdict import Checked
from clearhead.pages import printable


def render(report: Report) -> str:
    """The XML of one suite. A warning is a case that passes and says so, and what could not be judged an error."""
    failed = sum(check.status == "fail" for check in report.checks)
    errors = len(report.unjudged)
    skipped = sum(check.status in ("skip", "blocked", "waived") for check in report.checks) - errors
    counts = {
        "name": f"clearhead doctor {report.target}",
        "tests": str(len(report.checks)),
        "failures": str(failed),
        "errors": str(errors),
        "skipped": str(skipped),
        "time": f"{report.seconds:.3f}",
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", counts)
    for check in report.checks:
        _case(suite, report, check)
    ET.indent(suites)
    return printable(ET.tostring(suites, encoding="unicode", xml_declaration=True)) + "\n"


def _case(suite: ET.Element, report: Report, check: Checked) -> None:
    seconds = f"{check.milliseconds / 1000:.3f}"
    name = {"classname": f"doctor.{report.target}", "name": check.name, "time": seconds}
    case = ET.SubElement(suite, "testcase", name)
    text, note = "\n\n".join("\n".join(of_finding(finding)) for finding in report.of_check(check.name)), check.note
    if check.status == "fail":
        ET.SubElement(case, "failure", {"type": check.id, "message": note}).text = text or note
    elif check.status == "warn":
        ET.SubElement(case, "system-out").text = text or note
    elif check in report.unjudged:
        ET.SubElement(case, "error", {"type": check.id, "message": note})
    elif check.status != "pass":
        ET.SubElement(case, "skipped", {"message": f"{check.status}: {note}"})
