"""The doctor on the healthy hosts and on every planted fault: what it finds, and what it says of it.

    python benchmarks/doctor/run.py            # the tables
    python benchmarks/doctor/run.py --keep     # and into benchmarks/results/doctor.md

Every model is given as a stranger would give it, `clearhead doctor FILE.py:build --json`, in this process. The doctor
learns nothing of the benchmark: neither what kind the model is meant to be nor what was planted.
"""

import io
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from faults import HERE, HOSTS, Fault, faults_of, kind_of, write
from judging import Report, Verdict, judge, named_causes, new_findings
from tables import arguments, publish

from clearhead.cli import run as clearhead

RESULTS = HERE.parent / "results" / "doctor.md"
UNREADABLE: Report = {"verdict": "unknown", "findings": [], "checks": []}


@dataclass(frozen=True)
class Examined:
    """One model: the report, the command's exit code and sentence if it gave no report, and its milliseconds."""

    report: Report
    exit_code: int
    sentence: str
    milliseconds: float


@dataclass(frozen=True)
class Case:
    """One mutant that was examined and judged."""

    fault: Fault
    verdict: Verdict
    examined: Examined
    causes: list[str]


def examine(path: Path, level: str) -> Examined:
    """What `clearhead doctor PATH:build --json` says."""
    return ask(["doctor", f"{path}:build", "--level", level])


def ask(argv: Sequence[str]) -> Examined:
    """What `clearhead WORDS --json` says."""
    out, start_time = io.StringIO(), time.perf_counter()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        try:
            code = clearhead([*argv, "--json"])
        except SystemExit as stop:
            code = int(stop.code or 0)
    milliseconds = 1000 * (time.perf_counter() - start_time)
    document = json.loads(out.getvalue() or "{}")
    if "verdict" not in document:
        return Examined(UNREADABLE, code, document.get("error", "no report"), milliseconds)
    return Examined(document, code, "", milliseconds)


def percent(right: Iterable[bool]) -> str:
    values = list(right)
    return f"{100 * sum(values) / len(values):.1f} % of {len(values)}" if values else "none"


def row(name: str, cases: Sequence[Case]) -> str:
    """One line of the table of measures."""
    verdicts = [case.verdict for case in cases]
    detected = [verdict for verdict in verdicts if verdict.detected]
    cells = [
        percent(verdict.detected for verdict in verdicts),
        percent(verdict.module for verdict in detected if verdict.module is not None),
        percent(verdict.cause == 1 for verdict in detected),
        percent(verdict.cause is not None and verdict.cause <= 3 for verdict in detected),
        f"{statistics.median(case.examined.milliseconds for case in cases):.0f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def measures(cases: Sequence[Case]) -> list[str]:
    """The table that the doctor is held against."""
    groups: dict[str, list[Case]] = {"all": list(cases)}
    for case in cases:
        groups.setdefault(case.fault.tier, []).append(case)
    for case in cases:
        groups.setdefault(f"`{case.fault.host}` ({case.fault.kind})", []).append(case)
    return [
        "| faults | detected | right module, where there is one | right cause first | among the first three "
        "| milliseconds, median |",
        "|---|---|---|---|---|---|",
        *(row(name, group) for name, group in groups.items()),
        "\nModules and causes are counted over the faults that were detected.",
    ]


def healthy(hosts: Sequence[tuple[str, Examined]]) -> list[str]:
    """The table of false alarms."""
    lines = ["| healthy host | kind | verdict | false alarms | warnings | of checks | milliseconds |", "|" + "---|" * 7]
    for host, examined in hosts:
        report = examined.report
        ids = {status: [f["id"] for f in report["findings"] if f["status"] == status] for status in ("fail", "warn")}
        alarms = [", ".join(ids[status]) or "0" for status in ("fail", "warn")]
        verdict = report["verdict"] if not examined.sentence else f"exit {examined.exit_code}: {examined.sentence}"
        lines.append(
            f"| `{host}` | {kind_of(host)} | {verdict} | {alarms[0]} | {alarms[1]} | {len(report['checks'])} "
            f"| {examined.milliseconds:.0f} |"
        )
    return lines


def shortcomings(cases: Sequence[Case]) -> list[str]:
    """Faults that were missed, blamed on another module, or explained by another cause."""
    lines = ["| fault | id | tier | shortcoming | named instead |", "|---|---|---|---|---|"]
    for case in cases:
        verdict, wrong = case.verdict, []
        if not verdict.detected:
            wrong.append(f"not examined: {case.examined.sentence}" if case.examined.sentence else "not detected")
        else:
            wrong += ["module"] if verdict.module is False else []
            wrong += [] if verdict.cause == 1 else [f"cause in place {verdict.cause}" if verdict.cause else "cause"]
        if wrong:
            named = ", ".join(case.causes[:3]) or "nothing"
            fault = case.fault
            lines.append(f"| {fault.title} | {fault.id} | {fault.tier} | {', '.join(wrong)} | {named} |")
    return lines


def run(hosts: Sequence[str], level: str) -> tuple[list[tuple[str, Examined]], list[Case]]:
    """Examine hosts and their mutants."""
    twins: list[tuple[str, Examined]] = []
    cases: list[Case] = []
    with TemporaryDirectory() as folder:
        for host in hosts:
            twin = examine(HERE / "hosts" / f"{host}.py", level)
            twins.append((host, twin))
            for fault in faults_of(host):
                print(fault.title, file=sys.stderr)
                examined = examine(write(fault, Path(folder)), level)
                causes = named_causes(new_findings(examined.report, twin.report))
                cases.append(Case(fault, judge(fault, examined.report, twin.report), examined, causes))
    return twins, cases


def main() -> None:
    parser = arguments(__doc__, RESULTS)
    parser.add_argument("--host", nargs="+", choices=HOSTS, default=HOSTS)
    parser.add_argument("--level", choices=("quick", "standard", "deep"), default="standard")
    args = parser.parse_args()
    torch.set_num_threads(1)
    twins, cases = run(args.host, args.level)
    page = [
        f"{len(cases)} planted faults, {len(twins)} healthy hosts, level {args.level}; {platform.machine()}, "
        f"one thread, torch {torch.__version__}.\n",
        *measures(cases),
        "\n## Healthy hosts\n",
        *healthy(twins),
        "\n## Shortcomings\n",
        *shortcomings(cases),
    ]
    publish("The doctor on planted faults", page, RESULTS, keep=args.keep)


if __name__ == "__main__":
    main()
