"""The doctor on released, known-good models: every architecture of transformers that reads and predicts tokens.

    python benchmarks/doctor/known_good.py                     # the tables
    python benchmarks/doctor/known_good.py --keep              # and into benchmarks/results/known_good.md
    python benchmarks/doctor/known_good.py --only GPT2LMHeadModel T5ForConditionalGeneration

Each is built small, as `clearhead doctor hf:CLASS` builds it, once for every attention that it supports, and examined
in a process of its own. The doctor is told nothing but what known_good.toml declares to be by design. What cannot be
built, called or finished in time is listed with its reason.
"""

import json
import multiprocessing
import os
import platform
import re
import statistics
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

import torch
import transformers
from tables import arguments, publish
from transformers.models.auto import modeling_auto

from clearhead.doctor import Spec, check
from clearhead.doctor.load.loading import load
from clearhead.doctor.spec import Level

HERE = Path(__file__).resolve().parent
EXCEPTIONS = HERE / "known_good.toml"
RESULTS = HERE.parent / "results" / "known_good.md"
BACKENDS = ("eager", "sdpa")
MAPPINGS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "bidirectional": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
PRELOADED = ("transformers.masking_utils", "transformers.generation", "clearhead.doctor.examination")
MADE = ("pass", "warn", "fail", "waived")  # the outcomes of checks that were made


@dataclass(frozen=True)
class Exempt:
    """What a released model does by design, although it looks like a fault."""

    architecture: str
    id: str
    reason: str


@dataclass
class Examined:
    """One architecture with one attention. `outcome`: examined, not built, not supported, not called, not finished."""

    architecture: str
    backend: str
    meant: str
    outcome: str
    sentence: str = ""
    seconds: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def broken(self) -> list[dict[str, Any]]:
        """The checks of ours that raised."""
        return [check for check in self.report["checks"] if check["name"] in self.report["broken"]]

    def ids(self, status: str) -> list[str]:
        """Of its findings; what is by design is none."""
        return [finding["id"] for finding in self.report["findings"] if finding["status"] == status]


def architectures() -> dict[str, str]:
    """Every class that reads and predicts tokens, and the kind that its mapping says."""
    kinds: dict[str, str] = {}
    for kind, mapping in MAPPINGS.items():
        for names in getattr(modeling_auto, mapping).values():
            for name in (names,) if isinstance(names, str) else names:
                kinds.setdefault(name, kind)
    return kinds


def exceptions() -> list[Exempt]:
    """The table of what is by design."""
    return [Exempt(**entry) for entry in tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))["exception"]]


def examine(architecture: str, backend: str, meant: str, level: Level, allow: dict[str, str]) -> Examined:
    """Build one and examine it, in this process."""
    start_time = time.perf_counter()
    case = Examined(architecture, backend, meant, "not built")
    torch.manual_seed(0)
    try:
        model = load(f"hf:{architecture}", {"attn_implementation": backend})
    except Exception as error:
        case.sentence = " ".join(str(error).split())
        if f'attn_implementation="{backend}"' in case.sentence or "scaled_dot_product_attention" in case.sentence:
            case.outcome = "not supported"
        return case
    try:
        report = check(model, Spec(allow=allow, fresh=True), level=level)
        case.outcome, case.report = "examined", report.as_json()
    except Exception as error:
        case.outcome, case.sentence = "not called", " ".join(str(error).split()).partition("; put this")[0]
    case.seconds = time.perf_counter() - start_time
    return case


def _child(pipe: Any, architecture: str, backends: Sequence[str], meant: str, level: Level) -> None:
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)  # what the models say is theirs
    torch.set_num_threads(1)
    allow = {exception.id: exception.reason for exception in exceptions() if exception.architecture == architecture}
    for backend in backends:
        pipe.send(asdict(examine(architecture, backend, meant, level, allow)))
    pipe.close()


def sweep(chosen: dict[str, str], level: Level, timeout: float) -> Iterator[Examined]:
    """All of them; each architecture in a process of its own, forked from one that has imported what is large."""
    start = multiprocessing.get_context("forkserver")
    start.set_forkserver_preload(list(PRELOADED))
    for architecture, meant in chosen.items():
        left = list(BACKENDS)
        while left:
            own_end, child_end = start.Pipe(duplex=False)
            process = start.Process(target=_child, args=(child_end, architecture, tuple(left), meant, level))
            process.start()
            child_end.close()
            while left:
                backend = left.pop(0)
                try:
                    if not own_end.poll(timeout):
                        yield Examined(architecture, backend, meant, "not finished", f"more than {timeout:g} seconds")
                        break
                    yield Examined(**own_end.recv())
                except EOFError:
                    process.join(timeout=60)
                    yield Examined(architecture, backend, meant, "not finished", f"ended with {process.exitcode}")
                    break
            process.kill()
            process.join(timeout=60)


def percent(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "none"


def spread(seconds: Iterable[float]) -> str:
    ranked = sorted(seconds) or [0.0]
    return f"{statistics.median(ranked):.2f}; {ranked[int(0.95 * len(ranked))]:.2f}"


def measures(cases: Sequence[Examined]) -> list[str]:
    """The table that the doctor is held against."""
    done = [case for case in cases if case.outcome == "examined"]
    checks = [check for case in done for check in case.report["checks"] if check["status"] in MADE]
    callable_ = {case.architecture for case in done}
    built = callable_ | {case.architecture for case in cases if case.outcome == "not called"}
    failed = [case for case in done if case.ids("fail")]
    rows = [
        ("architectures in the three mappings", str(len({case.architecture for case in cases})), ""),
        ("built from a small config", str(len(built)), "190"),
        ("of these called without an adapter", percent(len(callable_), len(built)), "80 %"),
        ("pairs of architecture and attention examined", str(len(done)), "300"),
        ("pairs with a false alarm (fail)", percent(len(failed), len(done)), "0"),
        ("checks made", str(len(checks)), ""),
        ("checks of ours that broke", str(sum(len(case.broken) for case in done)), "0"),
        ("warnings", percent(sum(check["status"] == "warn" for check in checks), len(checks)), "3 %"),
        ("kind read as the mapping says", percent(sum(c.report["kind"] == c.meant for c in done), len(done)), ""),
        ("seconds an examination, median; 95th of 100", spread(case.report["seconds"] for case in done), ""),
        ("the same with building", spread(case.seconds for case in done), ""),
    ]
    return ["| measure | value | goal |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def table_of_findings(cases: Sequence[Examined], status: str) -> list[str]:
    """A line per finding of that status, and where it was found."""
    places_of: dict[tuple[str, str], list[str]] = {}
    for case in (case for case in cases if case.outcome == "examined"):
        for id in case.ids(status):
            finding = next(candidate for candidate in case.report["findings"] if candidate["id"] == id)
            places_of.setdefault((id, finding["title"]), []).append(f"{case.architecture} ({case.backend})")
    lines = [
        f"| {id} | {title} | {len(places)} | {_few(places)} |" for (id, title), places in sorted(places_of.items())
    ]
    return ["| id | finding | pairs | where |", "|---|---|---|---|", *lines] if lines else ["None."]


def _few(places: Sequence[str]) -> str:
    names = Counter(name_of_place.partition(" ")[0] for name_of_place in places)
    return ", ".join(name for name in names)


def broken(cases: Sequence[Examined]) -> list[str]:
    """A line per check that raised, and on which model."""
    lines = [
        f"| {case.architecture} | {case.backend} | {check['name']} | {check['note'].replace('|', '/')} |"
        for case in cases
        if case.outcome == "examined"
        for check in case.broken
    ]
    return ["| architecture | attention | check | note |", "|---|---|---|---|", *lines] if lines else ["None."]


def by_design(cases: Sequence[Examined], declared: Iterable[Exempt]) -> list[str]:
    """The table of exceptions, and whether each is still one."""
    lines = ["| architecture | id | reason | seen |", "|---|---|---|---|"]
    for exception in declared:
        mine = [case for case in cases if case.architecture == exception.architecture and case.outcome == "examined"]
        backends = [
            case.backend
            for case in mine
            for check in case.report["checks"]
            if check["status"] == "waived" and check["note"].startswith(exception.id)
        ]
        if mine:
            cells = (exception.architecture, exception.id, exception.reason, ", ".join(backends) or "no longer")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def left_out(cases: Sequence[Examined]) -> list[str]:
    """What was not examined, and why."""
    lines = ["| architecture | attention | outcome | reason |", "|---|---|---|---|"]
    for case in cases:
        if case.outcome != "examined":
            reason = re.sub(r"/\S*site-packages/", "", case.sentence.replace("|", "/"))[:200]
            lines.append(f"| {case.architecture} | {case.backend} | {case.outcome} | {reason} |")
    return lines


def page(cases: Sequence[Examined], level: str) -> list[str]:
    """Everything, as it is kept."""
    return [
        f"transformers {transformers.__version__}, level {level}; {platform.machine()}, one thread, "
        f"torch {torch.__version__}.\n",
        *measures(cases),
        "\n## False alarms\n",
        *table_of_findings(cases, "fail"),
        "\n## Warnings\n",
        *table_of_findings(cases, "warn"),
        "\n## Checks that broke\n",
        *broken(cases),
        "\n## By design\n",
        *by_design(cases, exceptions()),
        "\n## Not examined\n",
        *left_out(cases),
    ]


def read(path: Path) -> list[Examined]:
    """What an earlier sweep wrote, of the architectures that it finished."""
    if not path.is_file():
        return []
    cases = [Examined(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    last = {(case.architecture, case.backend): case for case in cases}
    whole = Counter(architecture for architecture, _ in last)
    return [case for case in last.values() if whole[case.architecture] == len(BACKENDS)]


def main() -> None:
    parser = arguments(__doc__, RESULTS)
    parser.add_argument("--only", nargs="+", metavar="CLASS", help="these architectures")
    parser.add_argument("--level", choices=("quick", "standard"), default="standard")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one architecture with one attention")
    parser.add_argument(
        "--reports", type=Path, help="a file of all reports, a line each; what it holds is not made again"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = architectures()
    chosen = {name: known[name] for name in args.only or known}
    cases = read(args.reports) if args.reports else []
    left = {name: kind for name, kind in chosen.items() if name not in {case.architecture for case in cases}}
    for case in sweep(left, args.level, args.timeout):
        alarms = " ".join(case.ids("fail") + case.ids("warn")) if case.report else case.sentence[:80]
        print(f"{case.architecture} {case.backend}: {case.outcome} {case.seconds:.1f} s {alarms}", file=sys.stderr)
        cases.append(case)
        if args.reports:
            with args.reports.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(case)) + "\n")
    cases = [case for case in cases if case.architecture in chosen]
    publish("The doctor on released models", page(cases, args.level), RESULTS, keep=args.keep)


if __name__ == "__main__":
    main()
