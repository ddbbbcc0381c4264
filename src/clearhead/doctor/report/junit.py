"""A report as JUnit XML, which every test server can show: one case for each check. Imports no torch."""

import xml.etree.ElementTree as ET

from clearhead.doctor.report.findings import text_of
from clearhead.doctor.report.report import Report
from clearhead.doctor.report.verdict import Checked
from clearhead.pages import printable


def render(report: Report) -> str:
    """The XML of one suite. A warning is a passed case with output; what could not be judged is an error."""
    errors = len(report.unjudged)
    counts = {
        "name": f"clearhead doctor {report.target}",
        "tests": str(len(report.checks)),
        "failures": str(sum(check.status == "fail" for check in report.checks)),
        "errors": str(errors),
        "skipped": str(sum(check.status in ("skip", "blocked", "waived") for check in report.checks) - errors),
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
    text = text_of(report.of_check(check.name)) or check.note
    if check.status == "fail":
        ET.SubElement(case, "failure", {"type": check.id, "message": check.note}).text = text
    elif check.status == "warn":
        ET.SubElement(case, "system-out").text = text
    elif check in report.unjudged:
        ET.SubElement(case, "error", {"type": check.id, "message": check.note})
    elif check.status != "pass":
        ET.SubElement(case, "skipped", {"message": f"{check.status}: {check.note}"})
