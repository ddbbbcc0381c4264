"""Other tools beside the doctor, on the same planted faults and the same healthy hosts.

    python benchmarks/doctor/other_tools.py --tools FOLDER --install   # puts them into FOLDER, and makes the tables
    python benchmarks/doctor/other_tools.py --tools FOLDER --keep      # and into benchmarks/results/other_tools.md

torchtest2, pytest-torch and neural_net_checklist are no dependencies of this project: they have a folder of their
own, and one that is not in it is skipped. The doctor is given a file and nothing else; the others are given inputs
and a loss as well, because they ask for them (`batches.py`), and are used as their documentation says (`peers.py`).

A fault counts as detected if a tool complains of something of which it does not complain on the healthy host. Whether
it names what is wrong is not asked of the others.
"""

import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from batches import BATCHES
from faults import HERE, HOSTS, Fault, built, faults_of, kind_of, write
from judging import new_findings
from peers import TOOLS, Complaint, Tool
from run import examine
from tables import arguments, publish

RESULTS = HERE.parent / "results" / "other_tools.md"
PACKAGES = ("torchtest2==0.1.0", "pytest-torch==1.1.1", "neural_net_checklist==1.1.0")
FOLDER = Path("build") / "other_tools"


@dataclass
class Score:
    """What one tool said of all hosts and mutants."""

    tool: str
    failed: dict[str, bool] = field(default_factory=dict)  # fault -> whether a failure of the tool shows it
    warned: dict[str, bool] = field(default_factory=dict)  # fault -> the same of a failure or a warning
    alarms: dict[str, list[str]] = field(default_factory=dict)  # healthy host -> checks that fail on it
    warnings: dict[str, list[str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


def judge_tool(tool: Tool, hosts: Sequence[str], folder: Path) -> Score:
    score = Score(f"{tool.name} {tool.version}")
    for host in hosts:
        twin = complaints_of(tool, host, HERE / "hosts" / f"{host}.py", score)
        score.alarms[host] = [complaint.check for complaint in twin if complaint.status == "fail"]
        score.warnings[host] = [complaint.check for complaint in twin if complaint.status == "warn"]
        known = {complaint.check for complaint in twin}
        for fault in faults_of(host):
            new = [
                complaint
                for complaint in complaints_of(tool, host, write(fault, folder), score)
                if complaint.check not in known
            ]
            score.failed[fault.title] = any(complaint.status != "warn" for complaint in new)
            score.warned[fault.title] = bool(new)
        print(f"{tool.name} {host}", file=sys.stderr)
    return score


def complaints_of(tool: Tool, host: str, path: Path, score: Score) -> list[Complaint]:
    kind = "cached" if host == "cached" else kind_of(host)
    start_time = time.perf_counter()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            complaints = tool.examine(lambda: built(path), BATCHES[host](), kind)
        except Exception as error:
            complaints = [Complaint(f"the model cannot be used ({type(error).__name__})", "crash")]
    score.seconds.append(time.perf_counter() - start_time)
    return complaints


def judge_doctor(hosts: Sequence[str], folder: Path) -> Score:
    score = Score("clearhead doctor")
    for host in hosts:
        twin = examine(HERE / "hosts" / f"{host}.py", "standard")
        for status, kept in (("fail", score.alarms), ("warn", score.warnings)):
            kept[host] = [finding["id"] for finding in twin.report["findings"] if finding["status"] == status]
        for fault in faults_of(host):
            examined = examine(write(fault, folder), "standard")
            new = new_findings(examined.report, twin.report)
            score.failed[fault.title] = any(finding["status"] == "fail" for finding in new)
            score.warned[fault.title] = bool(new)
            score.seconds.append(examined.milliseconds / 1000)
        print(f"clearhead doctor {host}", file=sys.stderr)
    return score


def share(right: Iterable[bool]) -> str:
    values = list(right)
    return f"{100 * sum(values) / len(values):.1f} % of {len(values)}" if values else "none"


def measures(scores: Sequence[Score], faults: Sequence[Fault]) -> list[str]:
    """One line a tool."""
    exact = {fault.title for fault in faults if fault.tier == "exact"}
    lines = [
        "| tool | detected, by a failure | by a failure or a warning | of the faults with an exact check, by a failure "
        "| healthy hosts with a false failure | with a warning | seconds a model, median |",
        "|" + "---|" * 7,
    ]
    for score in scores:
        cells = [
            score.tool,
            share(score.failed.values()),
            share(score.warned.values()),
            share(score.failed[title] for title in exact),
            f"{sum(map(bool, score.alarms.values()))} of {len(score.alarms)}",
            f"{sum(map(bool, score.warnings.values()))} of {len(score.warnings)}",
            f"{statistics.median(score.seconds):.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def by_host(scores: Sequence[Score], faults: Sequence[Fault]) -> list[str]:
    lines = [f"| host | faults | {' | '.join(score.tool for score in scores)} |", "|" + "---|" * (2 + len(scores))]
    for host in dict.fromkeys(fault.host for fault in faults):
        titles = [fault.title for fault in faults if fault.host == host]
        counts = [str(sum(score.warned[title] for title in titles)) for score in scores]
        lines.append(f"| `{host}` | {len(titles)} | {' | '.join(counts)} |")
    return lines


def false_alarms(scores: Sequence[Score]) -> list[str]:
    lines = ["| tool | failed on healthy hosts |", "|---|---|"]
    for score in scores:
        counted = Counter(check for checks in score.alarms.values() for check in checks)
        alarms = ", ".join(f"{check} ({n})" for check, n in counted.most_common()) or "nothing"
        lines.append(f"| {score.tool} | {alarms} |")
    return lines


def only_theirs(scores: Sequence[Score]) -> list[str]:
    """What another tool shows and the doctor does not."""
    doctor, *others = scores
    missed = [title for title, is_shown in doctor.warned.items() if not is_shown]
    lines = [f"- {title}: {score.tool}" for title in missed for score in others if score.warned[title]]
    return lines or ["Nothing."]


def install(folder: Path) -> None:
    """Put the tools alone into a folder; what they need is here already, or not needed for this."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PACKAGES]
    subprocess.run(command, check=True)


def main() -> None:
    parser = arguments(__doc__, RESULTS)
    parser.add_argument("--host", nargs="+", choices=HOSTS, default=HOSTS)
    parser.add_argument("--tools", type=Path, default=FOLDER, help=f"the folder that holds them (default: {FOLDER})")
    parser.add_argument("--install", action="store_true", help="make that folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.install:
        install(args.tools)
    sys.path.append(str(args.tools))
    present = [tool for tool in TOOLS if tool.version is not None]
    absent = [tool.name for tool in TOOLS if tool.version is None]
    faults = [fault for host in args.host for fault in faults_of(host)]
    with TemporaryDirectory() as folder:
        scores = [judge_doctor(args.host, Path(folder))]
        scores += [judge_tool(tool, args.host, Path(folder)) for tool in present]
    page = [
        f"{len(faults)} planted faults, {len(args.host)} healthy hosts; {platform.machine()}, one thread, torch "
        f"{torch.__version__}. The doctor's seconds are those of a whole process, the others' those of a call.\n",
        *([f"Skipped, because {args.tools} does not hold them: {', '.join(absent)}.\n"] if absent else []),
        *measures(scores, faults),
        "\n## By host\n",
        "Faults that are detected, by a failure or a warning.\n",
        *by_host(scores, faults),
        "\n## False alarms\n",
        *false_alarms(scores),
        "\n## Shown by another tool and not by the doctor\n",
        *only_theirs(scores),
    ]
    publish("Other tools beside the doctor", page, RESULTS, keep=args.keep)


if __name__ == "__main__":
    main()
