"""Are the planted faults faults? Every mutant runs, differs from its healthy twin, and is as silent as is claimed.

    python benchmarks/doctor/faults_check.py                # runs and differs
    python benchmarks/doctor/faults_check.py --train 20     # and twenty of the silent ones, evenly taken, are trained
    python benchmarks/doctor/faults_check.py --train all --keep

A silent fault is one with which the loss still falls: 300 steps on a tiny synthetic corpus, beside the healthy twin's.
`--keep` writes the table to benchmarks/results/doctor_faults.md.
"""

import statistics
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from calls import CALLS, Host
from differences import witness
from faults import HERE, HOSTS, Fault, all_faults, built, write
from tables import arguments, publish

RESULTS = HERE.parent / "results" / "doctor_faults.md"
STEPS = 300
FALLEN = 0.9  # a loss that has fallen is below this part of what it was


class Curve(NamedTuple):
    """The loss of the first five steps, and of the last twenty."""

    first: float
    last: float

    @property
    def falls(self) -> bool:
        return self.last < FALLEN * self.first


def train(host: Host, path: Path, steps: int = STEPS) -> Curve:
    """Train a fresh model for some steps of AdamW."""
    torch.manual_seed(0)
    model = built(path).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        loss = host.loss(model, generator)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return Curve(statistics.fmean(losses[:5]), statistics.fmean(losses[-20:]))


def chosen(faults: list[Fault], how_many: str) -> list[Fault]:
    """So many of the silent faults, evenly taken, or all."""
    silent = [fault for fault in faults if fault.silence >= 2]
    count = len(silent) if how_many == "all" else min(int(how_many), len(silent))
    return [silent[index * len(silent) // count] for index in range(count)]


def differences(faults: list[Fault], folder: Path) -> tuple[list[str], list[str]]:
    """The lines of a table, and the titles of faults that are none."""
    lines, equal = [], []
    for fault in faults:
        difference = witness(CALLS[fault.host], HERE / "hosts" / f"{fault.host}.py", write(fault, folder))
        if difference is None:
            equal.append(fault.title)
        modules = ", ".join(f"`{module}`" if module else "the model" for module in fault.modules)
        cells = (fault.title, fault.id, modules, fault.silence, fault.tier, difference or "**nothing**")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines, equal


def trained(path: Path, host: str) -> Curve:
    """Train a file's model as its host is trained; in a process of its own, of which there are as many as cores."""
    torch.set_num_threads(1)
    return train(CALLS[host], path)


def trainings(faults: list[Fault], folder: Path) -> tuple[list[str], list[str]]:
    """The lines of a table, and the titles of faults that are not silent."""
    lines, loud = [], []
    with ProcessPoolExecutor() as pool:
        hosts = dict.fromkeys(fault.host for fault in faults)
        twins = {host: pool.submit(trained, HERE / "hosts" / f"{host}.py", host) for host in hosts}
        curves = [pool.submit(trained, write(fault, folder), fault.host) for fault in faults]
        for fault, future in zip(faults, curves, strict=True):
            curve, twin = future.result(), twins[fault.host].result()
            print(f"trained {fault.title}", file=sys.stderr)
            if not curve.falls:
                loud.append(fault.title)
            lines.append(
                f"| {fault.title} | {fault.id} | {fault.silence} | {curve.first:.2f} to {curve.last:.2f} "
                f"| {twin.first:.2f} to {twin.last:.2f} | {'yes' if curve.falls else '**no**'} |"
            )
    return lines, loud


def main() -> None:
    parser = arguments(__doc__, RESULTS)
    parser.add_argument("--train", default="0", metavar="N|all", help="how many of the silent faults to train")
    parser.add_argument("--host", nargs="+", choices=HOSTS, default=HOSTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    faults = [fault for fault in all_faults() if fault.host in args.host]
    with TemporaryDirectory() as folder:
        lines, equal = differences(faults, Path(folder))
        curves, loud = trainings(chosen(faults, args.train), Path(folder))
    counts = Counter(fault.tier for fault in faults)
    page = [
        f"{len(faults)} faults in {len(args.host)} hosts, {counts['exact']} of them with an exact check; "
        f"{len(equal)} do not differ from their healthy twin.\n",
        "| fault | id | guilty module | silence | tier | differs in |",
        "|---|---|---|---|---|---|",
        *lines,
    ]
    if curves:
        page += [
            f"\n{len(curves)} of the silent ones trained for {STEPS} steps; the loss of {len(loud)} does not fall.\n",
            "| fault | id | silence | loss | healthy twin's | falls |",
            "|---|---|---|---|---|---|",
            *curves,
        ]
    publish("Faults planted for the doctor", page, RESULTS, keep=args.keep)
    sys.exit(1 if equal or loud else 0)


if __name__ == "__main__":
    main()
