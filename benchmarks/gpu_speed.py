"""On one GPU: nanoGPT's model for one, 10.7 M parameters, beside ours of that size, and how fast a text is written.

    python benchmarks/gpu_speed.py --nanogpt FOLDER [--install] [--rounds 3] [--steps 300 600] [--peak 989] [--keep]
    python benchmarks/gpu_speed.py --nanogpt FOLDER --small     # on the processor, far too small: does all of it run?

The first table has whole processes in turn, of which none finds what another has compiled. nanoGPT, compiled, is
stopped when it has told a held-out loss of 1.4697 or less (it looks every 250 steps), and its seconds end with that
line; if it never does, with the line of its lowest loss. Ours, compiled and not, are the preset `medium` in that size:
Qwen3's layout, trained with Muon. Its rate and number of steps are not tuned for it, so several are tried, and `--also`
changes more; the seconds are the whole process. What each has learnt is evaluated here, on the whole held-out tenth in
windows of 256. "Peak" is what the maker states, 989 * 10^12 operations a second for an H200, and "product" what the
product of two matrices reaches here; six operations count for each token and number of a matrix, and attention's
without the masked half.
The other tables are `generation_speed.py`, on the device.
"""

import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from generation_speed import Writing
from side_by_side import compile_package, machine, spread
from time_to_loss import Logits, held_out_loss, install, nanogpt_copy, nanogpt_logits, timed
from training_speed import step_flops

from clearhead.config import DataConfig, ModelConfig
from clearhead.data import TextData, prepare
from clearhead.workflows import load

RESULTS = Path(__file__).parent / "results" / "gpu_speed.md"
VOCAB = 65  # of Shakespeare's characters
PRODUCTS = 20  # of two matrices, for the rate that the machine reaches


@dataclass(frozen=True)
class Scale:
    """What both sides are told, to which loss, and the sides of the matrices whose product is the peak."""

    device: str
    goal: float
    window: int
    nanogpt: str
    ours: str
    side: int
    writing: tuple[tuple[str, int], ...]  # shapes and streams of generation


FULL = Scale(
    device="cuda",
    goal=1.4697,
    window=256,
    nanogpt="--device=cuda --compile=True",
    ours="--model.n_layers 6 --model.d_model 384 --train.batch_size 64",
    side=8192,
    writing=(("0.8M", 1), ("0.8M", 64), ("124M", 1)),
)
SMALL = Scale(
    device="cpu",
    goal=4.0,
    window=64,
    nanogpt="--device=cpu --compile=False --eval_interval=20 --eval_iters=2 --log_interval=5 --max_iters=100 "
    "--block_size=64 --batch_size=8 --n_layer=2 --n_head=2 --n_embd=32 --dropout=0.0",
    ours="--model.n_layers 1 --model.n_heads 2 --model.d_model 32 --model.block_size 64 --train.batch_size 8 "
    "--model.dropout 0",
    side=256,
    writing=(("0.8M", 1),),
)


@dataclass(frozen=True)
class Outcome:
    """A process: its seconds, and of a step; the tokens of that, and the operations of a token; the loss it came to."""

    seconds: float
    step_seconds: float
    step_tokens: int
    token_flops: float
    loss: float

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.token_flops * self.step_tokens / self.step_seconds


class Race:
    """Both programs on one text."""

    def __init__(self, scale: Scale, repository: Path, also: str) -> None:
        self.scale, self.repository, self.also = scale, repository, also
        self.data: TextData = prepare(DataConfig(source="shakespeare", tokenizer="char"))

    def programs(self, steps: Sequence[int]) -> dict[str, Callable[[int], Outcome]]:
        """What is run in turn, each with a seed."""
        programs: dict[str, Callable[[int], Outcome]] = {"nanoGPT": lambda _: self.nanogpt()}
        for count, compiled in itertools.product(steps, ("on", "off")):
            how = "compiled" if compiled == "on" else "not compiled"
            programs[f"clearhead, {count} steps, {how}"] = lambda seed, n=count, c=compiled: self.ours(n, c, seed)  # type: ignore[misc]
        return programs

    def ours(self, steps: int, compiled: str, seed: int) -> Outcome:
        options = (
            f"--preset medium --data.tokenizer char {self.scale.ours} "
            f"--train.device {self.scale.device} --train.compile {compiled}"
        )
        ends = f"--train.steps {steps} --train.eval_every {steps} --train.save_every {steps} --seed {seed}"
        with tempfile.TemporaryDirectory() as name:
            command = [sys.executable, "-m", "clearhead", "train", self.data.source, "--out", "run", "--json"]
            command += f"{options} {ends} {self.also}".split()
            seconds, _ = timed(command, Path(name), apart(Path(name)))
            run = load(Path(name) / "run")
            step = statistics.median(record["seconds"] for record in run.records() if record["kind"] == "step")
            model, config = run.model().eval().to(self.scale.device), run.config
            tokens, flops = config.train.batch_size * config.model.block_size, step_flops(config.model)
            return Outcome(seconds, step, tokens, flops, self._loss(model))

    def nanogpt(self) -> Outcome:
        with tempfile.TemporaryDirectory() as name:
            folder = nanogpt_copy(self.repository, Path(name), self.data)
            command = [
                sys.executable,
                "-u",
                "train.py",
                "config/train_shakespeare_char.py",
                *self.scale.nanogpt.split(),
            ]
            seconds, step = watched(command, folder, self.scale.goal)
            saved = torch.load(folder / "out-shakespeare-char" / "ckpt.pt", weights_only=True, map_location="cpu")
            arguments, config = saved["model_args"], saved["config"]
            names = {"n_layers": "n_layer", "n_heads": "n_head", "d_model": "n_embd", "block_size": "block_size"}
            shape = ModelConfig.read({ours: arguments[name] for ours, name in names.items()}, {"vocab_size": VOCAB})
            tokens = config["batch_size"] * config["block_size"] * config["gradient_accumulation_steps"]
            loss = self._loss(nanogpt_logits(folder, self.scale.device))
            return Outcome(seconds, step, tokens, step_flops(shape), loss)

    def _loss(self, logits: Logits) -> float:
        return held_out_loss(logits, self.data, self.scale.window, self.scale.device)

    def table(self, steps: Sequence[int], rounds: int, peak: float) -> Iterator[str]:
        """Its lines."""
        programs = self.programs(steps)
        outcomes: dict[str, list[Outcome]] = {name: [] for name in programs}
        for seed in range(1, rounds + 1):
            for name, run in programs.items():
                outcomes[name].append(run(seed))
                print(f"round {seed}: {name}: {outcomes[name][-1]}", file=sys.stderr)
        first = statistics.median(outcome.seconds for outcome in outcomes["nanoGPT"])
        product = product_rate(self.scale.side, self.scale.device)
        yield f"A product, {self.scale.side} wide: {product / 1e12:.3g} * 10^12 operations a second.\n"
        heads = ("seconds", "times sooner", "loss", "ms a step", "tokens a second", "of peak", "of product")
        yield f"| to {self.scale.goal:g} | {' | '.join(heads)} |"
        yield "|---|---|---|---|---|---|---|---|"
        for name, runs in outcomes.items():
            seconds, losses = [outcome.seconds for outcome in runs], [outcome.loss for outcome in runs]
            step, rate = (
                statistics.median(getattr(outcome, what) for outcome in runs) for what in ("step_seconds", "rate")
            )
            yield (
                f"| {name} | {spread(seconds)} | {first / statistics.median(seconds):.1f} | {spread(losses)} "
                f"| {1e3 * step:.2f} | {runs[0].step_tokens / step:,.0f} | {rate / peak:.1%} | {rate / product:.1%} |"
            )


def apart(folder: Path) -> dict[str, str]:
    """The environment of a process that finds nothing compiled."""
    kept = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    return {**os.environ, **kept}


def watched(command: Sequence[str], folder: Path, goal: float) -> tuple[float, float]:
    """nanoGPT's seconds until it tells a loss that is low enough, or else its lowest one, and those of a step."""
    start_time = time.perf_counter()
    lowest, reached, iterations = float("inf"), float("inf"), list[tuple[int, float]]()
    with subprocess.Popen(command, cwd=folder, env=apart(folder), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            now = time.perf_counter() - start_time
            if match := re.match(r"step \d+: .* val loss ([\d.]+)", line):
                if lowest > goal and float(match[1]) < lowest:
                    lowest, reached = float(match[1]), now
            elif match := re.match(r"iter (\d+):", line):
                iterations.append((int(match[1]), now))
                if lowest <= goal:  # and the checkpoint is written
                    process.kill()
                    break
    assert iterations, "nanoGPT failed; what it said is above"
    pairs = itertools.pairwise(iterations)
    return reached, statistics.median((then - now) / (later - count) for (count, now), (later, then) in pairs)


def product_rate(side: int, device: str) -> float:
    """Operations per second of products of two bfloat16 matrices."""
    matrix = torch.ones(side, side, dtype=torch.bfloat16, device=device)

    def seconds() -> float:
        start_time = time.perf_counter()
        for _ in range(PRODUCTS):
            product = matrix @ matrix
        product[0, 0].item()  # a GPU is waited for
        return time.perf_counter() - start_time

    seconds()  # warm up
    return PRODUCTS * 2 * side**3 / statistics.median(seconds() for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, help="the folder of its repository")
    parser.add_argument("--install", action="store_true", help="clone it into that folder first")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", nargs="+", type=int, default=[300, 600], help="of our trainings")
    parser.add_argument("--also", default="", help="options that our trainings are told besides")
    parser.add_argument("--peak", type=float, default=989.0, help="of the machine, in 10^12 operations a second")
    parser.add_argument("--small", action="store_true", help="everything on the processor, tiny")
    parser.add_argument("--keep", action="store_true", help=f"write the tables into {RESULTS.name}")
    args = parser.parse_args()
    if args.install:
        install(args.nanogpt)
    compile_package()
    scale = SMALL if args.small else FULL
    name = torch.cuda.get_device_name() if scale.device == "cuda" else "no GPU"
    lines = [
        f"{name}; {machine()}, {args.rounds} rounds, interleaved, each with a seed of its own; {args.also}",
        "",
    ]
    lines += Race(scale, args.nanogpt, args.also).table(args.steps, args.rounds, 1e12 * args.peak)
    for shape, streams in scale.writing:
        lines += ["", *Writing(shape, streams, scale.device).table(args.rounds, "wall")]
    print("\n".join(lines))
    if args.keep:
        RESULTS.write_text("# On one GPU\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
