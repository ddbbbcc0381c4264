"""The doctor on bugs that were published: what it says of them, and whether it is silent once they are mended.

    python benchmarks/doctor/real_bugs.py                          # the table
    python benchmarks/doctor/real_bugs.py --keep                   # and into benchmarks/results/real_bugs.md
    python benchmarks/doctor/real_bugs.py --old FOLDER --install   # puts the old transformers into FOLDER first

Two kinds: replays in words of our own, `real/NAME.py` with `buggy` and `fixed`, and classes of an old version of
transformers, which needs a folder of its own. Without that folder those are skipped, and the table says so.
"""

import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from faults import HERE, Tier
from judging import Verdict, judge, named_causes, new_findings
from run import Examined, ask
from tables import arguments, publish

RESULTS = HERE.parent / "results" / "real_bugs.md"
OLD = "transformers==5.12.0"
FOLDER = Path("build") / "transformers-5.12.0"


@dataclass(frozen=True)
class Bug:
    """One published bug; the attributes are those of `faults.Fault`, as far as they are judged.

    Attributes:
        reference: where it was published.
        ask: what the doctor is given, see real/bugs.toml.
        settings: of the class's config.
    """

    name: str
    reference: str
    ask: Literal["model", "loss", "hf", "hf loss"]
    id: str
    also: tuple[str, ...]
    modules: tuple[str, ...]
    tier: Tier
    settings: tuple[str, ...] = ()

    @property
    def needs_old(self) -> bool:
        """Whether it is there in an old version only."""
        return self.ask.startswith("hf")

    def argv(self, version: str) -> list[str]:
        """What the command is asked about the `buggy` or the `fixed` version."""
        file = HERE / "real" / f"{self.name}.py"
        commands = {
            "model": ["doctor", f"{file}:{version}", "--level", "standard"],
            "loss": ["doctor", "loss", f"{file}:{version}"],
            "hf": ["doctor", f"hf:{self.name}", "--level", "standard"],
            "hf loss": ["doctor", "loss", f"{file}:loss"],
        }[self.ask]
        return [*commands, *(word for setting in self.settings for word in ("--set", setting))]


@dataclass(frozen=True)
class Case:
    """What was said of both versions."""

    bug: Bug
    buggy: Examined
    fixed: Examined
    verdict: Verdict

    @property
    def false_alarms(self) -> list[str]:
        """Failures of the version that is mended."""
        return [finding["id"] for finding in self.fixed.report["findings"] if finding["status"] == "fail"]


def bugs() -> list[Bug]:
    declared = tomllib.loads((HERE / "real" / "bugs.toml").read_text(encoding="utf-8"))
    return [
        Bug(
            name=entry["name"],
            reference=entry["reference"],
            ask=entry["ask"],
            id=entry["id"],
            also=tuple(entry.get("also", ())),
            modules=tuple(entry["modules"]),
            tier=entry["tier"],
            settings=tuple(entry.get("set", ())),
        )
        for entry in declared["bug"]
    ]


@contextmanager
def ahead_of_all(folder: Path | None) -> Iterator[None]:
    """The doctor's process finds this folder's packages before those that are installed."""
    before = os.environ.get("PYTHONPATH")
    if folder is not None:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder.resolve()), before)))
    try:
        yield
    finally:
        if before is not None:
            os.environ["PYTHONPATH"] = before
        elif folder is not None:
            del os.environ["PYTHONPATH"]


def examined(bug: Bug, old: Path) -> Case:
    with ahead_of_all(old if bug.needs_old else None):
        buggy = ask(bug.argv("buggy"))
    fixed = ask(bug.argv("fixed"))
    return Case(bug, buggy, fixed, judge(bug, buggy.report, fixed.report))


def row(case: Case) -> str:
    verdict, bug = case.verdict, case.bug
    if case.buggy.sentence:
        named = f"exit {case.buggy.exit_code}: {case.buggy.sentence[:120]}"
    else:
        named = ", ".join(named_causes(new_findings(case.buggy.report, case.fixed.report))[:3]) or "nothing"
    cause = {None: "no", 1: "yes"}.get(verdict.cause, f"in place {verdict.cause}")
    module = {None: "", True: "yes", False: "no"}[verdict.module]
    alarms = ", ".join(case.false_alarms) or (f"exit {case.fixed.exit_code}" if case.fixed.sentence else "0")
    detected = "yes" if verdict.detected else "**no**"
    return f"| `{bug.name}` | {bug.reference} | {bug.id} | {detected} | {cause} | {module} | {named} | {alarms} |"


def summary(cases: Sequence[Case], skipped: Sequence[Bug]) -> str:
    n = len(cases)
    detected, first = sum(c.verdict.detected for c in cases), sum(c.verdict.cause == 1 for c in cases)
    silent = sum(not case.false_alarms and not case.fixed.sentence for case in cases)
    blamed = [case.verdict.module for case in cases if case.verdict.module is not None]
    sentence = (
        f"{detected} of {n} detected, {first} of {n} with the right cause first, {sum(blamed)} of {len(blamed)} with "
        f"the right module where there is one; {silent} of {n} silent once mended."
    )
    return sentence + (f" {len(skipped)} skipped: {OLD} is not in its folder." if skipped else "")


def install(folder: Path) -> None:
    """Put the old version, and what it needs in their old versions, into a folder of their own."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), OLD]
    subprocess.run(command, check=True)


def main() -> None:
    parser = arguments(__doc__, RESULTS)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of real/bugs.toml")
    parser.add_argument("--old", type=Path, default=FOLDER, help=f"the folder that holds {OLD} (default: {FOLDER})")
    parser.add_argument("--install", action="store_true", help="make that folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.install:
        install(args.old)
    chosen = [bug for bug in bugs() if not args.only or bug.name in args.only]
    has_old = (args.old / "transformers").is_dir()
    skipped = [bug for bug in chosen if bug.needs_old and not has_old]
    cases = []
    for bug in chosen:
        if bug not in skipped:
            print(bug.name, file=sys.stderr)
            cases.append(examined(bug, args.old))
    page = [
        f"{len(cases)} bugs; {platform.machine()}, one thread, torch {torch.__version__}.\n",
        summary(cases, skipped) + "\n",
        "| bug | published as | cause | detected | cause first | module | named | false alarms once mended |",
        "|" + "---|" * 8,
        *map(row, cases),
    ]
    publish("The doctor on published bugs", page, RESULTS, keep=args.keep)


if __name__ == "__main__":
    main()
