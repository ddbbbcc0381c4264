"""Whole processes to a loss on Tiny Shakespeare: `clearhead train` beside nanoGPT's recipe for a CPU, interleaved.

    python benchmarks/time_to_loss.py --nanogpt FOLDER --install    # clones nanoGPT into FOLDER first
    python benchmarks/time_to_loss.py --goals 1.88 [--rounds 3] [--nanogpt FOLDER] [--text FILE] [--clock wall] [--keep]

Each run is a process of its own, timed from its start to its end: loading, preparing the text, evaluations, samples and
checkpoints are in it. Afterwards the model it left is evaluated here on the whole held-out tenth, cut into windows side
by side, in the same way for both. Every round has another seed (nanoGPT's recipe has one of its own). The held-out
split is never trained on, and no recipe was chosen by it. With --text the same recipes learn a text for which nothing
was chosen. Beside busy neighbors, one thread (OMP_NUM_THREADS=1) and --clock processor tell more than the wall's clock.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # for both sides: a busy neighbor then costs little

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from side_by_side import compile_package, machine, spread
from torch import Tensor

from clearhead.config import DataConfig
from clearhead.data import TextData, evaluation_batches, prepare
from clearhead.wording import counted
from clearhead.workflows import load

NANOGPT = "https://github.com/karpathy/nanoGPT"
# The line of its README for computers without a GPU.
RECIPE = (
    "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1 "
    "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 "
    "--dropout=0.0"
)
RESULTS = Path(__file__).parent / "results" / "time_to_loss.md"
TOKENS_AT_ONCE = 8192  # in one batch of an evaluation

Logits = Callable[[Tensor], Tensor]  # ids (B, T) -> (B, T, V)


@dataclass(frozen=True)
class Goal:
    """A loss to reach, and what `clearhead train` is told to reach it."""

    window: int  # tokens that the model sees at most, when it is evaluated
    beside_nanogpt: bool
    recipes: dict[str, str]


GOALS: dict[str, Goal] = {
    "1.88": Goal(
        window=64,
        beside_nanogpt=True,
        recipes={
            "plain Transformer": "--preset tiny --data.tokenizer char --model.d_model 64 --model.n_heads 2 "
            "--model.block_size 64 --train.batch_size 16 --train.learning_rate 0.02 --train.steps 280 "
            "--train.eval_every 280",
            "with n-gram tables": "--preset ngram-tables --train.steps 23 --train.eval_every 23",
        },
    ),
    "1.50": Goal(window=256, beside_nanogpt=False, recipes={"plain Transformer": "--data.tokenizer char --minutes 3"}),
    "1.4697": Goal(
        window=256, beside_nanogpt=False, recipes={"plain Transformer": "--data.tokenizer char --minutes 4"}
    ),
}


@dataclass(frozen=True)
class Outcome:
    """One process: its seconds, the wall's seconds of steps where it tells them, and the loss it came to."""

    seconds: float
    in_steps: float | None
    loss: float


def held_out_loss(logits: Logits, data: TextData, window: int, device: str = "cpu") -> float:
    """Nats per token over the whole held-out split, in windows side by side, by a model that is on this device."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for ids, targets in evaluation_batches(data.val, block_size=window, batch_size=TOKENS_AT_ONCE // window):
            counted = targets >= 0
            counted_logits = logits(ids.to(device)).cpu()[counted].float()
            total += F.cross_entropy(counted_logits, targets[counted], reduction="sum").item()
            count += int(counted.sum())
    return total / count


def processor_seconds() -> float:
    """Of all processes that this one has started and awaited."""
    used = os.times()
    return used.children_user + used.children_system


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": processor_seconds}


def timed(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] = os.environ, clock: str = "wall"
) -> tuple[float, str]:
    """Seconds of a process, and its standard output."""
    start_time = CLOCKS[clock]()
    done = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return CLOCKS[clock]() - start_time, done.stdout


def ours(recipe: str, seed: int, data: TextData, window: int, clock: str) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "clearhead", "train", data.source, *recipe.split()]
        seconds, output = timed([*command, "--seed", str(seed), "--out", "run", "--json"], folder, clock=clock)
        model = load(folder / "run").model().eval()
        return Outcome(seconds, json.loads(output)["seconds"], held_out_loss(model, data, window))


def nanogpt(repository: Path, data: TextData, window: int, clock: str) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = nanogpt_copy(repository, Path(name), data)
        seconds, _ = timed([sys.executable, *RECIPE.split()], folder, clock=clock)
        return Outcome(seconds, None, held_out_loss(nanogpt_logits(folder), data, window))


def install(repository: Path) -> None:
    """Clone nanoGPT, where it is not there yet."""
    if not repository.exists():
        subprocess.run(["git", "clone", "--quiet", NANOGPT, str(repository)], check=True)


def nanogpt_copy(repository: Path, parent: Path, data: TextData) -> Path:
    """A copy that has the text."""
    folder = parent / "nanoGPT"
    shutil.copytree(repository, folder, ignore=shutil.ignore_patterns(".git"))
    text = folder / "data" / "shakespeare_char"
    (text / "input.txt").write_text(data.tokenizer.decode([*data.train, *data.val]), encoding="utf-8")
    subprocess.run([sys.executable, "prepare.py"], cwd=text, check=True, stdout=subprocess.DEVNULL)
    return folder


def nanogpt_logits(folder: Path, device: str = "cpu") -> Logits:
    """Its last checkpoint, in its own code."""
    sys.path.insert(0, str(folder))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    sys.path.remove(str(folder))
    saved = torch.load(folder / "out-shakespeare-char" / "ckpt.pt", weights_only=True, map_location=device)
    model = GPT(GPTConfig(**saved["model_args"])).eval().to(device)
    model.load_state_dict(saved["model"])
    return lambda ids: model(ids, ids)[0]  # all logits, where targets are given


def line(name: str, recipe: str, outcomes: Sequence[Outcome], first: float | None) -> str:
    """A row: medians, and lowest and highest; how much sooner than the first row."""
    seconds = [outcome.seconds for outcome in outcomes]
    steps = [outcome.in_steps for outcome in outcomes if outcome.in_steps is not None]
    sooner = f"{first / statistics.median(seconds):.1f}" if first else ""
    in_steps = f"{statistics.median(steps):.1f}" if steps else ""
    losses = [outcome.loss for outcome in outcomes]
    mean = f"{statistics.mean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})"
    return f"| {name} | `{recipe}` | {spread(seconds)} | {in_steps} | {mean} | {sooner} |"


def table(goal: Goal, target: str, rounds: int, repository: Path | None, data: TextData, clock: str) -> Iterator[str]:
    """The lines of one goal's table."""
    programs: dict[str, tuple[str, Callable[[int], Outcome]]] = {}
    if goal.beside_nanogpt and repository is not None:
        programs["nanoGPT"] = (RECIPE, lambda seed: nanogpt(repository, data, goal.window, clock))
    for name, recipe in goal.recipes.items():
        programs[name] = (recipe, lambda seed, recipe=recipe: ours(recipe, seed, data, goal.window, clock))  # type: ignore[misc]
    outcomes: dict[str, list[Outcome]] = {name: [] for name in programs}
    for seed in range(1, rounds + 1):
        for name, (_, run) in programs.items():
            outcomes[name].append(run(seed))
            print(f"{target}, round {seed}: {name}: {outcomes[name][-1]}", file=sys.stderr)
    recipes = f"recipes to {target}, {Path(data.source).stem}, windows of {goal.window}"
    yield f"| {recipes} | told | seconds | of them in steps | loss | times sooner |"
    yield "|---|---|---|---|---|---|"
    first = statistics.median(outcome.seconds for outcome in outcomes["nanoGPT"]) if "nanoGPT" in outcomes else None
    for name, (recipe, _) in programs.items():
        yield line(name, recipe, outcomes[name], first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goals", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nanogpt", type=Path, help="the folder of its repository; without it, its row is left out")
    parser.add_argument("--install", action="store_true", help="clone it into that folder first")
    parser.add_argument("--text", default="shakespeare", help="a file or a corpus (default: shakespeare)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="whose seconds count")
    parser.add_argument("--keep", action="store_true", help=f"add the tables to {RESULTS.name}")
    args = parser.parse_args()
    if args.install and args.nanogpt is None:
        parser.error("--install needs --nanogpt, the folder to put it into")
    if args.install:
        install(args.nanogpt)
    compile_package()
    data = prepare(DataConfig(source=args.text, tokenizer="char"))
    clock = f"{args.clock} clock, {counted(args.rounds, 'round')}, interleaved, each with a seed of its own"
    lines = [f"{machine()}, {clock}; whole processes."]
    for target in args.goals:
        lines_of_table = list(table(GOALS[target], target, args.rounds, args.nanogpt, data, args.clock))
        print("\n".join(lines_of_table), flush=True)
        lines += ["", *lines_of_table]
    if args.keep:
        before = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# How soon a loss is reached\n"
        RESULTS.write_text(before + "\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
