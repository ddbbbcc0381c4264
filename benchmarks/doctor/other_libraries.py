"""The doctor on known-good models of libraries other than transformers: x-transformers, litgpt and many small ones.

    python benchmarks/doctor/other_libraries.py --install    # puts them into a folder of their own; makes the tables
    python benchmarks/doctor/other_libraries.py --keep       # and into benchmarks/results/other_libraries.md
    python benchmarks/doctor/other_libraries.py --only litgpt x-transformers

The table other_libraries.toml says how each is built, and what it does by design. Each becomes a small file with
build(), and is examined as `clearhead doctor FILE.py:build` examines it: in a process of its own, without an adapter,
told nothing. A library that the folder does not hold is listed as missing; so is, with its reason, what cannot be
built, called or finished in time.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from known_good import MADE, percent, spread

from clearhead.doctor.isolated import Request, examine_isolated
from clearhead.errors import ClearheadError

HERE = Path(__file__).resolve().parent
TABLE = HERE / "other_libraries.toml"
RESULTS = HERE.parent / "results" / "other_libraries.md"
FOLDER = Path("build") / "other_libraries"
REFUSED = "no way was found to call"  # what the doctor says where it wants an adapter


@dataclass(frozen=True)
class Library:
    """One library. `packages`: what pip installs for it, itself first. `imports`: how a file that uses it begins."""

    name: str
    packages: tuple[str, ...]
    imports: str


@dataclass(frozen=True)
class Model:
    """One model of a library. `build`: the expression that makes it. `design`: id -> why it is no fault there.

    `bug`: id -> what is wrong with it, where the doctor is right.
    """

    library: str
    name: str
    kind: str
    build: str
    design: dict[str, str] = field(default_factory=dict)
    bug: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.library}: {self.name}"


@dataclass
class Examined:
    """A model and what came of it. `outcome`: examined, missing, refused (it wants an adapter) or not examined."""

    model: Model
    outcome: str
    sentence: str = ""
    seconds: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)

    def ids(self, status: str) -> list[str]:
        """Of its findings. What is by design is none; a bug of the library is one, and none of the doctor's alarms."""
        findings = self.report.get("findings", [])
        return [
            finding["id"] for finding in findings if finding["status"] == status and finding["id"] not in self.model.bug
        ]


def table() -> tuple[list[Library], list[Model]]:
    """Everything that the table declares."""
    declared_table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    libraries = [
        Library(entry["name"], tuple(entry["packages"]), entry["imports"]) for entry in declared_table["library"]
    ]
    return libraries, [Model(**entry) for entry in declared_table["model"]]


def source(library: Library, model: Model) -> str:
    """The file that a person would write."""
    return f"{library.imports.strip()}\n\n\ndef build():\n    return {model.build}\n"


def sweep(libraries: Sequence[Library], models: Sequence[Model], args: argparse.Namespace) -> Iterator[Examined]:
    """All models, those of missing libraries too."""
    present = {distribution.name.lower() for distribution in distributions(path=[str(args.libraries)])}
    known = {library.name: library for library in libraries}
    with TemporaryDirectory() as folder:
        for number, model in enumerate(models):
            library = known[model.library]
            if library.name.lower() not in present:
                yield Examined(model, "missing", f"{library.packages[0]} is not in {FOLDER}; --install puts it there")
                continue
            path = Path(folder) / f"model_{number}.py"
            path.write_text(source(library, model), encoding="utf-8")
            yield examine(model, path, args)


def examine(model: Model, path: Path, args: argparse.Namespace) -> Examined:
    """What `clearhead doctor PATH:build` says, with what is by design allowed."""
    request = Request(f"{path}:build", level=args.level, allow=model.design)
    start_time = time.perf_counter()
    case = Examined(model, "examined")
    search = [str(args.libraries.resolve())]
    try:
        case.report = examine_isolated(request, timeout=args.timeout, folder=path.parent, search=search)
    except ClearheadError as error:
        case.sentence = (
            str(error).replace(f"{path}:build", "it").replace(str(path), "its file").replace(f"{search[0]}/", "")
        )
        case.outcome = "refused" if REFUSED in case.sentence else "not examined"
    case.seconds = time.perf_counter() - start_time
    return case


def measures(cases: Sequence[Examined]) -> list[str]:
    """The table that the doctor is held against."""
    done = [case for case in cases if case.outcome == "examined"]
    built = len(done) + sum(case.outcome == "refused" for case in cases)
    checks = [check for case in done for check in case.report["checks"] if check["status"] in MADE]
    warned = sum(len(case.ids("warn")) for case in done)
    rows = [
        ("libraries", str(len({case.model.library for case in done})), "5"),
        ("models built", str(built), "40"),
        ("of these called without an adapter", percent(len(done), built), "80 %"),
        ("with a false alarm (fail)", percent(sum(bool(case.ids("fail")) for case in done), len(done)), "0"),
        ("checks made", str(len(checks)), ""),
        ("warnings", percent(warned, len(checks)), "3 %"),
        ("kind read as it is meant", percent(sum(c.report["kind"] == c.model.kind for c in done), len(done)), ""),
        (
            "models in which the doctor finds a bug",
            str(sum(bool(ids_in_report(case, case.model.bug)) for case in done)),
            "",
        ),
        ("seconds, whole process, median; 95th of 100", spread(case.seconds for case in done), ""),
    ]
    return ["| measure | value | goal |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def ids_in_report(case: Examined, ids: dict[str, str]) -> list[str]:
    """Which of these ids the report speaks of, as findings or as waived."""
    findings = {entry["id"] for entry in case.report["findings"]}
    waived = {entry["note"].partition(":")[0] for entry in case.report["checks"] if entry["status"] == "waived"}
    return [id for id in ids if id in findings | waived]


def table_of_findings(cases: Sequence[Examined], status: str) -> list[str]:
    """A line per finding of that status, and where it was found."""
    titles_of: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for id in case.ids(status):
            finding = next(candidate for candidate in case.report["findings"] if candidate["id"] == id)
            titles_of.setdefault((id, finding["title"]), []).append(case.model.title)
    lines = [
        f"| {id} | {title} | {len(where)} | {'; '.join(where)} |" for (id, title), where in sorted(titles_of.items())
    ]
    return ["| id | finding | models | where |", "|---|---|---|---|", *lines] if lines else ["None."]


def declared(cases: Sequence[Examined], what: str) -> list[str]:
    """What the table says of designs or of bugs, and whether each is still seen."""
    lines = ["| model | id | reason | seen |", "|---|---|---|---|"]
    for case in (case for case in cases if case.outcome == "examined"):
        ids = getattr(case.model, what)
        still = ids_in_report(case, ids)
        lines += [
            f"| {case.model.title} | {id} | {reason} | {'yes' if id in still else 'no longer'} |"
            for id, reason in ids.items()
        ]
    return lines


def left_out(cases: Sequence[Examined]) -> list[str]:
    """What was not examined, and why."""
    lines = ["| model | outcome | reason |", "|---|---|---|"]
    for case in cases:
        if case.outcome != "examined":
            reason = case.sentence.partition("; put this")[0].replace("|", "/")
            lines.append(f"| {case.model.title} | {case.outcome} | {reason[:240]} |")
    return lines


def page(libraries: Sequence[Library], cases: Sequence[Examined], level: str) -> list[str]:
    """Everything, as it is kept."""
    used = {case.model.library for case in cases if case.outcome != "missing"}
    return [
        f"Level {level}; {platform.machine()}, one thread, torch {torch.__version__}; "
        f"{', '.join(library.packages[0].replace('==', ' ') for library in libraries if library.name in used)}.\n",
        *measures(cases),
        "\n## False alarms\n",
        *table_of_findings(cases, "fail"),
        "\n## Warnings\n",
        *table_of_findings(cases, "warn"),
        "\n## Bugs of the libraries\n",
        *declared(cases, "bug"),
        "\n## By design\n",
        *declared(cases, "design"),
        "\n## Not examined\n",
        *left_out(cases),
    ]


def install(folder: Path, libraries: Sequence[Library]) -> None:
    """Put the libraries and what they need beside torch into a folder, and nothing into the environment."""
    packages = dict.fromkeys(package for library in libraries for package in library.packages)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    subprocess.run(command, check=True)


def read(path: Path, models: Sequence[Model]) -> list[Examined]:
    """What an earlier sweep wrote, as far as the table still has it."""
    known = {model.title: model for model in models}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    records = [json.loads(line) for line in lines]
    return [Examined(known[title], **record) for record in records if (title := record.pop("title")) in known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="LIBRARY", help="these libraries")
    parser.add_argument("--level", choices=("quick", "standard"), default="standard")
    parser.add_argument("--timeout", type=float, default=90, help="seconds for one model, with importing torch")
    parser.add_argument("--libraries", type=Path, default=FOLDER, help=f"the folder that holds them ({FOLDER})")
    parser.add_argument("--install", action="store_true", help="make that folder")
    parser.add_argument("--reports", type=Path, help="a file of all reports; what it holds is not made again")
    parser.add_argument("--keep", action="store_true", help=f"write the tables to {RESULTS.name}")
    args = parser.parse_args()
    libraries, models = table()
    libraries = [library for library in libraries if args.only is None or library.name in args.only]
    models = [model for model in models if model.library in {library.name for library in libraries}]
    if args.install:
        install(args.libraries, libraries)
    cases = read(args.reports, models) if args.reports else []
    examined = {case.model.title for case in cases}
    for case in sweep(libraries, [model for model in models if model.title not in examined], args):
        alarms = " ".join([*(f"FAIL {id}" for id in case.ids("fail")), *case.ids("warn")]) or case.sentence[:100]
        print(f"{case.model.title}: {case.outcome} {case.seconds:.1f} s {alarms}", file=sys.stderr)
        cases.append(case)
        if args.reports:
            record = vars(case) | {"title": case.model.title}
            record.pop("model")
            with args.reports.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
    tables = page(libraries, cases, args.level)
    print("\n".join(tables))
    if args.keep:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(["# The doctor on other libraries\n", *tables, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
