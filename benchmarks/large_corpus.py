"""A text of several gigabytes in compressed files: prepared, killed, gone on with, and trained on.

    python benchmarks/large_corpus.py TEXT [--gigabytes 2] [--files 16] [--steps 300] [--folder DIR] [--keep]

TEXT is repeated, each block with a number of its own, until its compressed files have so many gigabytes together. A
training of it is killed (-9) while it prepares the text, and a second one goes on, whose private memory is read twice a
second. Afterwards the batches of some steps are drawn by two processes, in two orders: what is in a batch
must depend on the seed and the step alone.
"""

import argparse
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from side_by_side import machine

RESULTS = Path(__file__).parent / "results" / "large_corpus.md"
BLOCK = 8_000_000  # bytes of text that are compressed once, and then repeated
BLOCKS = 4  # that differ
OPTIONS = """
--model.n_layers 2 --model.n_heads 2 --model.d_model 64 --model.d_ff 256 --model.block_size 64 --model.dropout 0
--data.tokenizer char --train.batch_size 8 --train.precision float32 --train.eval_tokens 4096 --train.threads 1 --json
""".split()  # noqa: SIM905
KILLED_AT = 0.4  # of the token file that a first process is to write
DRAWN = 40  # steps whose batches are compared
DRAW = """
import hashlib, json, sys
from pathlib import Path
from clearhead.workflows.runs.folder import RunFolder
run = RunFolder(Path(sys.argv[1]))
batches = run.task().batches(run.config)
digest = lambda step: hashlib.sha256(b"".join(part.numpy().tobytes() for part in batches(step))).hexdigest()
print(json.dumps({step: digest(step) for step in json.loads(sys.argv[2])}))
"""


def make(folder: Path, text: bytes, size: int, files: int) -> int:
    """Write the files; returns how many bytes of text are in them. A gzip file may have several members."""
    draw, blocks = random.Random(0), []
    lines = text.splitlines(keepends=True)
    for _ in range(BLOCKS):
        draw.shuffle(lines)
        block = b"".join(lines)
        blocks.append((block * (1 + BLOCK // len(block)))[:BLOCK])
    packed = [gzip.compress(block, 6) for block in blocks]
    written = 0
    for number in range(files):
        with (folder / f"{number:03}.txt.gz").open("wb") as file:
            while file.tell() < size // files:
                file.write(gzip.compress(b"Part %d.\n" % written))
                file.write(packed[written % BLOCKS])
                written += 1
    return written * BLOCK


def command(source: str, out: Path, steps: int) -> list[str]:
    train = ["train", source, "--out", str(out), "--train.steps", str(steps), "--train.save_every", "100"]
    return [sys.executable, "-m", "clearhead", *train, *OPTIONS]


def watched(process: "subprocess.Popen[str]") -> Iterator[tuple[float, int]]:
    """Seconds and the private memory of the process, in bytes, until it ends."""
    start_time = time.monotonic()
    while process.poll() is None:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        private = sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
        yield time.monotonic() - start_time, private
        time.sleep(0.5)


def start(arguments: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def killed(arguments: list[str], environment: dict[str, str], characters: int) -> float:
    """Seconds until a first process was killed, well into encoding."""
    process, cache = start(arguments, environment), Path(environment["CLEARHEAD_CACHE"])
    for seconds, _ in watched(process):
        if sum(path.stat().st_size for path in cache.rglob("train.bin")) > KILLED_AT * characters:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            return seconds
    raise AssertionError("it ended before it could be killed")


def draw(run: Path, steps: list[int], environment: dict[str, str]) -> dict[str, str]:
    """The digest of each step's batch, drawn in this order by a process of its own."""
    arguments = [sys.executable, "-c", DRAW, str(run), json.dumps(steps)]
    done = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True, timeout=3600)
    digests: dict[str, str] = json.loads(done.stdout)
    return digests


def measure(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    texts = folder / "texts"
    texts.mkdir()
    environment = os.environ | {"CLEARHEAD_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    characters = make(texts, args.text.read_bytes(), round(1e9 * args.gigabytes), args.files)
    packed = sum(path.stat().st_size for path in texts.iterdir())
    yield f"| files | {args.files}, {packed / 1e9:.2f} GB compressed, {characters / 1e9:.2f} GB of text |"
    arguments = command(str(texts / "*.txt.gz"), folder / "run", args.steps)
    seconds = killed(arguments, environment, characters)
    yield f"| killed (-9) while it encoded | after {seconds:,.0f} s |"
    process = start(arguments, environment)
    sizes: list[tuple[float, int]] = []
    training: list[tuple[float, int]] = []
    for at, size in watched(process):
        (training if (folder / "run" / "metrics.jsonl").exists() else sizes).append((at, size))
    result: dict[str, Any] = json.loads(process.communicate(timeout=60)[0])
    assert result["steps"] == args.steps
    yield f"| the same command again: until the first step | {training[0][0]:,.0f} s |"
    yield f"| {args.steps} steps, evaluated and saved | {training[-1][0] - training[0][0]:,.0f} s |"
    yield f"| private memory at first | {sizes[0][1] / 1e6:,.0f} MB after {sizes[0][0]:.1f} s |"
    yield f"| the most while the text is prepared | {max(size for _, size in sizes) / 1e6:,.0f} MB |"
    yield f"| the most while it trains | {max(size for _, size in training) / 1e6:,.0f} MB |"
    yield f"| loss, first and last | {result['first_loss']:.3f}, {result['train_loss']:.3f} |"
    chosen = random.Random(1).sample(range(10_000_000), DRAWN)
    first, again = (draw(folder / "run", steps, environment) for steps in (chosen, sorted(chosen)))
    alike = sum(first[str(step)] == again[str(step)] for step in chosen)
    different = len(set(first.values()))
    yield f"| batches of {DRAWN} steps, drawn by two processes | {alike} equal, {different} different steps |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2, help="of all files, compressed")
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--folder", type=Path, help="on a disk with room for three times as much text")
    parser.add_argument("--keep", action="store_true", help=f"write the table into {RESULTS.name}")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    lines = [f"{machine()}.", "", "| | |", "|---|---|"]
    try:
        for line in measure(args, folder):
            print(line, flush=True)
            lines.append(line)
    finally:
        shutil.rmtree(folder)
    if args.keep:
        RESULTS.write_text("# A large corpus\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
