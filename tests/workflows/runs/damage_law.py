"""Damage to the files of a run and of the cache, and the law about it.

A damage that would change what comes of a run (its options, what its model writes and scores, the weights where a
resume ends) is noticed in a sentence or repaired; one that would not may pass. Nothing ends in a traceback.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pair_helpers import tiny_translator, write_pairs
from workflow_helpers import tiny, write_text

from clearhead.errors import ClearheadError
from clearhead.options import merge
from clearhead.workflows import Notice, Observer, Run, WorkflowEvent, resume, train

LENGTH = {"steps": 7, "save_every": 2, "eval_every": 3}
PAIRS = "my.tsv"
PASSIVE = {".lock"}  # holds nothing
NOTICES = ("is damaged", "was altered")


class Crash(BaseException):
    """What nobody catches."""


class Outcome(NamedTuple):
    """What comes of a run: a value by the name of what was done, or the sentence that was raised instead."""

    values: dict[str, Any]
    sentences: dict[str, str]
    notices: list[str]


def crash_at(step: int) -> Observer:
    """As far as the library can tell, the process ends there."""

    def on_event(event: WorkflowEvent) -> None:
        if getattr(event, "step", 0) == step:
            raise Crash

    return on_event


def make_run(root: Path, options: dict[str, Any], *, pairs: bool = False) -> None:
    """A run that a crash ended before its last step, with its text or its pairs and its cache, in `root`."""
    usual = tiny_translator(train=LENGTH) if pairs else tiny(**LENGTH)
    with here(root):
        source = write_pairs(name=PAIRS) if pairs else write_text()
        try:
            train(source, out="run", options=merge(usual, options), on_event=crash_at(LENGTH["steps"]))
        except Crash:
            return
    raise AssertionError("the training did not crash")


@contextmanager
def here(root: Path) -> Iterator[None]:
    """In this folder, with its cache."""
    folder, cache = Path.cwd(), os.environ.get("CLEARHEAD_CACHE", "")
    os.chdir(root)
    os.environ["CLEARHEAD_CACHE"] = "cache"
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ["CLEARHEAD_CACHE"] = cache


def files_of(root: Path) -> list[Path]:
    """What can be damaged, relative to the root."""
    every = [path for part in ("run", "cache") for path in sorted((root / part).rglob("*")) if path.is_file()]
    return [path.relative_to(root) for path in every if path.name not in PASSIVE]


def damage(root: Path, seed: int) -> str:
    """Do one damage, chosen by the seed; returns what it was. Every file is as likely as any other."""
    draw = random.Random(seed)
    files = files_of(root)
    path = draw.choice(files)
    content = bytearray((root / path).read_bytes())
    kind = draw.choice(["bit", "bit", "bit", "byte", "byte", "cut", "zeros", "swap"])
    at = draw.randrange(max(1, len(content)))
    if kind == "swap" or not content:
        same_name = [other for other in files if other != path and other.name == path.name]
        other = draw.choice(same_name or files)
        (root / path).write_bytes((root / other).read_bytes())
        (root / other).write_bytes(content)
        return f"{seed}: {path} exchanged with {other}"
    if kind == "bit":
        content[at] ^= 1 << draw.randrange(8)
    elif kind == "byte":
        content[at] = draw.randrange(256)
    elif kind == "zeros":
        content[at : at + 16] = bytes(len(content[at : at + 16]))
    else:
        del content[at:]
    (root / path).write_bytes(content)
    return f"{seed}: {kind} at {at} of {path}"


def use(root: Path) -> Outcome:
    """Everything that a person does with a run."""
    values: dict[str, Any] = {}
    sentences: dict[str, str] = {}
    notices: list[str] = []
    run = Run(Path("run"))

    def on_event(event: WorkflowEvent) -> None:
        if isinstance(event, Notice):
            notices.append(event.text)

    def finished() -> list[str]:
        resume(run, on_event=on_event)
        last = max(run.checkpoints.glob("step-*"))
        paths = (run.folder / "model.safetensors", last / "model.safetensors", last / "optimizer.safetensors")
        return [last.name, *(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)]

    def translate() -> str:
        return run.translate("the old dog sees the cat.", engine="eager")

    what: dict[str, Callable[[], Any]] = {
        "options": lambda: run.config.model_dump(),
        "text": lambda: translate() if (root / PAIRS).exists() else run.generate("the", max_new_tokens=2, greedy=True),
        "score": run.evaluate,
        "weights": finished,
    }
    with here(root):
        for name, do in what.items():
            try:
                values[name] = do()
            except ClearheadError as error:
                sentences[name] = str(error)
    assert not any("\n" in sentence for sentence in sentences.values()), f"more than a line: {sentences}"
    return Outcome(values, sentences, notices)


def breach(outcome: Outcome, reference: Outcome) -> str | None:
    """How the law was broken, if it was."""
    is_reported = any(notice in text for text in outcome.notices for notice in NOTICES)
    for name, value in outcome.values.items():
        if value != reference.values[name] and not (is_reported and name == "weights"):
            return f"{name} changed in silence: {value} instead of {reference.values[name]}"
    return None


class Tally(NamedTuple):
    """How many damages were refused in a sentence, repaired with a notice, and changed nothing; and the breaches."""

    refused: int
    repaired: int
    passed: int
    breaches: list[str]


def judge(base: Path, scratch: Path, seeds: range, reference: Outcome) -> Tally:
    """The law over the damages of these seeds, each to a copy of the run."""
    refused = repaired = passed = 0
    breaches: list[str] = []
    for seed in seeds:
        copy = scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(base, copy)
        what = damage(copy, seed)
        try:
            outcome = use(copy)
            fault = breach(outcome, reference)
        except Exception as error:  # a traceback, to a person
            breaches.append(f"{what}: {type(error).__name__}: {error}")
            continue
        if fault:
            breaches.append(f"{what}: {fault}")
        elif outcome.sentences:
            refused += 1
        elif any(notice in text for text in outcome.notices for notice in NOTICES):
            repaired += 1
        else:
            passed += 1
    return Tally(refused, repaired, passed, breaches)
