"""The doctor among strangers: models of public repositories that were judged by reading before the doctor saw them.

    python benchmarks/doctor/strangers.py --half open              # a line for each model, and the totals
    python benchmarks/doctor/strangers.py --half locked            # the totals alone: nobody mends with sight of it
    python benchmarks/doctor/strangers.py --half reserve           # likewise: what was judged since, to be run once
    python benchmarks/doctor/strangers.py --keep                   # all three, and into benchmarks/results/strangers.md
    python benchmarks/doctor/strangers.py --check OWNER/NAME       # whether its models build and its proofs hold
    python benchmarks/doctor/strangers.py --where OWNER/NAME       # the file that its manifest belongs into

Each model becomes a small file with build() and is examined as `clearhead doctor FILE.py:build` examines it: in a
process of its own, without an adapter, told nothing. The repositories' code is imported and run with your rights.
--mirrors FOLDER names Git directories, OWNER+NAME/repo, that are used instead of the network; --packages FOLDER a
folder in which their packages are (--install puts them there).
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from judging import Finding, Report, named_causes, new_findings
from stranger_files import BUILD, HERE, PARTS, Bug, Fault, Model, Repository, Stranger, fetched, repositories
from tables import arguments, publish

from clearhead.doctor.isolated import Request, examine_isolated
from clearhead.errors import ClearheadError

RESULTS = HERE.parent / "results" / "strangers.md"
PACKAGES = BUILD / "packages"
REFUSED = "no way was found to call"  # what the doctor says where it wants an adapter
EMPTY: Report = {"verdict": "unknown", "findings": [], "checks": []}


@dataclass
class Case:
    """A model and what came of it. `outcome`: examined, missing, refused (it wants an adapter) or not examined."""

    repository: Repository
    stranger: Model | Bug
    outcome: str = "examined"
    sentence: str = ""
    seconds: float = 0.0
    report: Report = field(default_factory=lambda: EMPTY)
    twin: Report = field(default_factory=lambda: EMPTY)  # of a bug: once it is mended

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.stranger.faults if isinstance(self.stranger, Model) else (self.stranger.fault,)

    def findings(self, *statuses: str) -> list[Finding]:
        """Of these statuses; of a bug, those that its mended version has not."""
        return [finding for finding in new_findings(self.report, self.twin) if finding["status"] in statuses]

    def right(self, finding: Finding, *, latent: bool) -> bool:
        """Whether it, or a cause that it names, is a fault that was judged to be there."""
        faults = [fault for fault in self.faults if latent or not fault.latent]
        return any(speaks_of(finding, fault) for fault in faults)

    def found(self, fault: Fault, *statuses: str) -> bool:
        return any(speaks_of(finding, fault) for finding in self.findings(*statuses))


def speaks_of(finding: Finding, fault: Fault) -> bool:
    """Whether a finding or one of its causes has the fault's id."""
    return bool({finding["id"], *named_causes([finding])} & {fault.id, *fault.also})


def write(stranger: Stranger, wrapper: str, root: Path, folder: Path) -> Path:
    """The file that a person would write."""
    path = folder / f"wrapper_of_{stranger.name}.py"  # its name must not hide a module of theirs
    path.write_text(f"from pathlib import Path\n\nROOT = Path({str(root)!r})\n{wrapper}", encoding="utf-8")
    return path


def search(stranger: Stranger, root: Path, packages: Path) -> list[str]:
    """Where the file's imports are looked for."""
    return [str(root / stranger.folder), str(root), str(HERE), str(packages.resolve())]


def examine(repository: Repository, stranger: Model | Bug, args: argparse.Namespace) -> Case:
    """What the doctor says of one model; of a bug, also once it is mended."""
    case = Case(repository, stranger)
    versions = [(repository.commit, stranger.wrapper)]
    if isinstance(stranger, Bug):
        versions = [(stranger.buggy, stranger.wrapper), (stranger.fixed, stranger.fixed_wrapper or stranger.wrapper)]
    reports = []
    for commit, wrapper in versions:
        root = fetched(repository.name, commit, args.mirrors)
        if root is None:
            case.outcome, case.sentence = "missing", f"{commit} could not be fetched"
            return case
        with TemporaryDirectory() as folder:
            path = write(stranger, wrapper, root, Path(folder))
            target, task = (f"{path}:compute", "loss") if stranger.ask == "loss" else (f"{path}:build", "check")
            start_time = time.perf_counter()
            try:
                reports.append(
                    examine_isolated(
                        Request(target, task=task, level=args.level),
                        timeout=args.timeout,
                        folder=root,
                        search=search(stranger, root, args.packages),
                    )
                )
            except ClearheadError as error:
                case.sentence = str(error).replace(target, "it").replace(str(path), "its file")
                case.outcome = "refused" if REFUSED in case.sentence else "not examined"
                return case
            finally:
                case.seconds = time.perf_counter() - start_time
    case.report = reports[0]  # type: ignore[assignment]
    if len(reports) > 1:
        case.twin = reports[1]  # type: ignore[assignment]
    return case


def sweep(half: str, args: argparse.Namespace) -> Iterator[Case]:
    """Every model of a part, in the order of the repositories."""
    pairs: list[tuple[Repository, Model | Bug]] = [
        (repository, stranger)
        for repository in repositories(half)
        if not args.only or repository.name in args.only
        for stranger in repository.strangers
    ]
    with ThreadPoolExecutor(args.jobs) as pool:
        yield from pool.map(lambda pair: examine(pair[0], pair[1], args), pairs)


def percent(part: Iterable[bool]) -> str:
    values = list(part)
    return f"{sum(values)} of {len(values)}, {100 * sum(values) / len(values):.0f} %" if values else "none"


def measures(cases: Sequence[Case]) -> dict[str, str]:
    """What the doctor is held against, by name."""
    models = [case for case in cases if isinstance(case.stranger, Model)]
    bugs = [case for case in cases if isinstance(case.stranger, Bug)]
    reached = [case for case in models if case.outcome in ("examined", "refused", "not examined")]
    done = [case for case in models if case.outcome == "examined"]
    failures = [(case, finding) for case in done for finding in case.findings("fail")]
    sound = [case for case in done if all(fault.latent for fault in case.faults)]
    accused = [any(not case.right(finding, latent=True) for finding in case.findings("fail")) for case in sound]
    warned = [any(not case.right(finding, latent=True) for finding in case.findings("warn")) for case in sound]
    faults = [(case, fault) for case in reached for fault in case.faults if not fault.latent]
    in_catalogue = [(case, fault) for case, fault in faults if fault.id != "none"]
    seconds = [case.seconds for case in done]
    return {
        "repositories": str(len({case.repository.name for case in cases})),
        "models": str(len(models)),
        "missing": str(len(models) - len(reached)),
        "refused or not examined": percent(case.outcome != "examined" for case in reached),
        "failures that are right": percent(case.right(finding, latent=False) for case, finding in failures),
        "with latent faults": percent(case.right(finding, latent=True) for case, finding in failures),
        "healthy models accused": percent(accused),
        "healthy models warned of": percent(warned),
        "faults found": percent(case.found(fault, "fail") for case, fault in faults),
        "found, of those that the catalogue names": percent(case.found(fault, "fail") for case, fault in in_catalogue),
        "found or warned of": percent(case.found(fault, "fail", "warn") for case, fault in in_catalogue),
        "found, in models that were examined": percent(
            case.found(fault, "fail") for case, fault in in_catalogue if case.outcome == "examined"
        ),
        "published bugs found": percent(case.found(fault, "fail") for case in bugs for fault in case.faults),
        "published bugs, a failure that is gone once mended": percent(bool(case.findings("fail")) for case in bugs),
        "seconds, whole process, median": f"{statistics.median(seconds):.1f}" if seconds else "none",
    }


def reported(cases: Iterable[Case]) -> Iterator[Case]:
    """The same cases, with the line of each on standard error at once: a sweep takes an hour."""
    for case in cases:
        print(line_of(case), file=sys.stderr, flush=True)
        yield case


def details(cases: Sequence[Case]) -> Iterator[str]:
    """A line for each model. Never of what is locked."""
    yield "| model | judged | fails | warns | outcome |"
    yield "|---|---|---|---|---|"
    yield from map(line_of, cases)


def line_of(case: Case) -> str:
    """A row of the table."""
    judged = ", ".join(f"({fault.id})" if fault.latent else fault.id for fault in case.faults) or "healthy"
    ids = [", ".join(finding["id"] for finding in case.findings(status)) for status in ("fail", "warn")]
    outcome = case.outcome if case.outcome == "examined" else f"{case.outcome}: {_short(case.sentence)}"
    return f"| {case.repository.name} {case.stranger.name} | {judged} | {ids[0]} | {ids[1]} | {outcome} |"


def _short(sentence: str) -> str:
    return " ".join(sentence.partition("; put this")[0].replace("|", "/").split())[:200]


def check(name: str, args: argparse.Namespace) -> bool:
    """Build every model of a repository and run every proof, without the doctor; print what fails."""
    good = True
    for repository in (held for part in PARTS for held in repositories(part) if held.name == name):
        for stranger in repository.strangers:
            versions = [("", repository.commit, stranger.wrapper, True)]
            if isinstance(stranger, Bug):
                mended = stranger.fixed_wrapper or stranger.wrapper
                versions = [("buggy", stranger.buggy, stranger.wrapper, True), ("fixed", stranger.fixed, mended, False)]
            for version, commit, wrapper, holds in versions:
                outcome = _proved(repository, stranger, commit, wrapper, args)
                expected = "holds" if holds or not stranger.proof else "does not hold"
                good &= outcome == expected
                print(f"{name} {stranger.name} {version}: {outcome if outcome != expected else 'as judged'}")
    return good


def _proved(repository: Repository, stranger: Stranger, commit: str, wrapper: str, args: argparse.Namespace) -> str:
    """Whether it builds and its proof holds: 'holds', 'does not hold', or what went wrong."""
    root = fetched(repository.name, commit, args.mirrors)
    if root is None:
        return f"{commit} could not be fetched"
    call = "compute" if stranger.ask == "loss" else "build()"
    proof = f"{wrapper}\n\nif __name__ == '__main__':\n    {call}\n    print('BUILT', flush=True)\n"
    proof += "".join(f"    {line}\n" for line in stranger.proof.splitlines())
    with TemporaryDirectory() as folder:
        path = write(stranger, proof, root, Path(folder))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(search(stranger, root, args.packages))}
        command = [sys.executable, "-P", str(path)]
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=args.timeout, check=False
        )
    if "BUILT" not in done.stdout:
        return f"does not build: {done.stderr[-600:]}"
    if done.returncode == 0:
        return "holds"
    return "does not hold" if "AssertionError" in done.stderr else f"the proof breaks: {done.stderr[-600:]}"


def install(packages: Path) -> None:
    """Put what the repositories need into a folder of its own."""
    needed = sorted({package for part in PARTS for repository in repositories(part) for package in repository.packages})
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), *needed]
    subprocess.run(command, check=True)


def main() -> None:
    parser = arguments(__doc__, RESULTS)
    parser.add_argument("--half", choices=PARTS, action="append", help="only this one")
    parser.add_argument("--only", metavar="OWNER/NAME", nargs="+", help="of the open half, only these repositories")
    parser.add_argument("--check", metavar="OWNER/NAME", nargs="+", help="build and prove these, without the doctor")
    parser.add_argument("--where", metavar="OWNER/NAME", help="print the file of a repository's manifest")
    parser.add_argument("--mirrors", type=Path, help="a folder of Git directories, OWNER+NAME/repo")
    parser.add_argument("--packages", type=Path, default=PACKAGES, help=f"where their packages are ({PACKAGES})")
    parser.add_argument("--install", action="store_true", help="install their packages first")
    parser.add_argument("--level", default="quick")
    parser.add_argument("--jobs", type=int, default=1, help="examinations at a time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a model")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.install:
        install(args.packages)
    if args.where:
        file = Repository(name=args.where, commit="0" * 40, nature="kept").file
        if file.exists():
            parser.error(f"{args.where} has been judged: nobody writes over a manifest")
        print(file)
        return
    if args.check:
        checked = [check(name, args) for name in args.check]
        sys.exit(not all(checked))
    halves = args.half or list(PARTS)
    if args.only and halves != ["open"]:
        parser.error("--only is for the open half: what is locked is counted as a whole")
    cases = {half: list(reported(sweep(half, args)) if half == "open" else sweep(half, args)) for half in halves}
    totals = {half: measures(cases[half]) for half in halves}
    page = [f"torch {torch.__version__}, {platform.machine()}, one thread.", ""]
    page += [f"| measure | {' | '.join(halves)} |", "|---|" + "---|" * len(halves)]
    page += [f"| {name} | {' | '.join(totals[half][name] for half in halves)} |" for name in totals[halves[0]]]
    if "open" in cases:
        page += ["", "## The open half", "", *details(cases["open"])]
    publish("The doctor among strangers", page, RESULTS, keep=args.keep)


if __name__ == "__main__":
    main()
