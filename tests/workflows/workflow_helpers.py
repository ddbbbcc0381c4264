"""Trainings of a second, and what two of them must have in common to be called the same."""

import json
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from clearhead.options import merge
from clearhead.workflows import Observer, Run, train
from clearhead.workflows.events import ignore
from clearhead.workflows.runs.records import MEASURED

STEPS = 9
WORDS = ["the", "a", "king", "queen", "says", "goes", "home", "and", "not;", "with", "little", "river.", "stone\n"]


def some_text(characters: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    text = ""
    while len(text) < characters:
        text += draw.choice(WORDS) + " "
    return text[:characters]


def write_text(characters: int = 900, name: str = "my.txt") -> Path:
    """Into the current folder."""
    path = Path(name)
    path.write_text(some_text(characters), encoding="utf-8")
    return path


def tiny(**train: Any) -> dict[str, Any]:
    """Options of a training that takes a moment."""
    return {
        "model": {"n_layers": 1, "n_heads": 2, "d_model": 16, "block_size": 16, "dropout": 0.1},
        "train": {"steps": STEPS, "batch_size": 4, "eval_every": 4, "save_every": 3, "threads": 1, **train},
    }


def trained(folder: str = "run", options: Mapping[str, Any] | None = None, on_event: Observer = ignore) -> Run:
    source = Path("my.txt") if Path("my.txt").exists() else write_text()
    return train(source, out=folder, options=merge(tiny(), options or {}), on_event=on_event)


class Outcome(NamedTuple):
    """What an interrupted training must share with the undisturbed one, bit for bit."""

    model: bytes
    last_checkpoint: dict[str, bytes]
    records: list[dict[str, Any]]


def outcome(folder: str | Path) -> Outcome:
    run = Run(Path(folder))
    last = max(path for path in run.checkpoints.iterdir() if path.name.startswith("step-"))
    records = map(json.loads, run.metrics.read_text(encoding="utf-8").splitlines())
    return Outcome(
        (run.folder / "model.safetensors").read_bytes(),
        {"": last.name.encode()} | {path.name: path.read_bytes() for path in sorted(last.iterdir())},
        [
            {key: value for key, value in record.items() if key not in MEASURED}
            for record in records
            if record["kind"] != "start"
        ],
    )


def assert_same(actual: Outcome, expected: Outcome) -> None:
    """In an order in which the first difference says most."""
    assert actual.records == expected.records
    assert actual.last_checkpoint == expected.last_checkpoint
    assert actual.model == expected.model


def empty_run(name: str, age: float) -> Run:
    """Something that passes for a run, last written to `age` seconds ago."""
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    for file in ("clearhead.toml", "metrics.jsonl"):
        (folder / file).touch()
        os.utime(folder / file, (1e9 - age, 1e9 - age))
    return Run(folder)


def some_records(steps: int, every: int = 10) -> Iterator[dict[str, Any]]:
    """What a training of so many steps writes down, with an evaluation and a sample in each `every` steps."""
    for step in range(1, steps + 1):
        loss = 1 + 3 / step**0.5
        yield {"kind": "step", "step": step, "loss": loss, "tokens": 64, "seconds": 0.5}
        if step % every == 0:
            yield {"kind": "evaluation", "step": step, "loss": loss + 0.1, "tokens": 1024, "best": True}
            yield {"kind": "sample", "step": step, "text": f"text {step} " * 20, "scores": {"bleu": step / steps}}
