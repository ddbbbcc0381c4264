"""Write a training's files: metrics.jsonl, samples.md, checkpoints, the model, report.html."""

import json
import math
import os
import re
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from clearhead.files import write_text
from clearhead.inspection import Curve, Sample, TrainingReport, account, render, verdict
from clearhead.models import LanguageModel
from clearhead.options import to_toml
from clearhead.pages import one_line, printable
from clearhead.training import Evaluated, Event, Notice, Optimizer, SaveDue, Stepped, TrainingState, checkpoints
from clearhead.workflows.events import Averaged, Finished, Observer, Said, Sampled, command
from clearhead.workflows.history import History
from clearhead.workflows.run_folder import RunFolder
from clearhead.workflows.tasks import Task

KINDS = {Stepped: "step", Evaluated: "evaluation", Sampled: "sample", Averaged: "mean"}


class Recorder:
    """Consumes the training's events: writes files, and passes on what the console shows."""

    def __init__(
        self, run: RunFolder, model: LanguageModel, optimizer: Optimizer, task: Task, observe: Observer
    ) -> None:
        self.run, self.model, self.optimizer, self.task, self.observe = run, model, optimizer, task, observe
        train = run.config.train
        self.keep = max(train.keep_checkpoints, train.average_checkpoints)  # what a mean is taken of must be there
        self.every = train.save_every

    def __enter__(self) -> Self:
        self.log = self.run.metrics.open("a", encoding="utf-8", errors="replace", buffering=1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._flush()
        finally:
            self.log.close()

    def take(self, event: Event) -> None:
        """Handle one event of the loop."""
        match event:
            case Stepped():
                self._write(event)
                self.observe(event)
            case Evaluated():
                self._write(event)
                self.observe(event)
                if math.isfinite(event.loss):  # what diverged writes nothing that is text
                    self._sample(event.step)
            case SaveDue():
                self.save(event.state, best=event.best)
            case Notice():
                self.observe(Said(event.text))

    def save(self, state: TrainingState, *, best: bool) -> None:
        """A checkpoint of now; the run's own model follows the best one, and is never missing."""
        self._flush()  # a checkpoint never knows of steps that the log does not
        checkpoints.save(self.run.checkpoints, self.model, self.optimizer, state, keep=self.keep, every=self.every)
        if best or self.run.damage():
            self.run.save_model(self.model, self.task.special_tokens, step=state.step)

    def _flush(self) -> None:
        self.log.flush()
        os.fsync(self.log.fileno())

    def begin_from(self, source: str) -> None:
        """The model was trained before, elsewhere: where, and what it writes before the first step."""
        self._log({"kind": "origin", "step": 0, "from": source})
        self._sample(0)

    def averaged(self, event: Averaged) -> None:
        """Record the result of checkpoint averaging."""
        self._write(event)
        self.observe(event)

    def _sample(self, step: int) -> None:
        example = self.task.example(self.model)
        sampled = Sampled(step, example.text, example.scores)
        self._write(sampled)
        self.observe(sampled)

    def _write(self, event: Stepped | Evaluated | Sampled | Averaged) -> None:
        self._log({"kind": KINDS[type(event)], **asdict(event)})

    def _log(self, record: dict[str, object]) -> None:
        self.log.write(json.dumps({key: _finite(value) for key, value in record.items()}, ensure_ascii=False) + "\n")


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value  # JSON has no NaN


def forget_after(run: RunFolder, step: int) -> None:
    """Truncate metrics.jsonl to the first `step` steps: later ones will be repeated, and so will an average."""
    kept = [record for record in run.records() if record["step"] <= step and record["kind"] != "mean"]
    write_text(run.metrics, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept))


def summary(run: RunFolder) -> dict[str, Any]:
    """The JSON of `train` and `resume`; losses are in nats per token."""
    return _figures(run, History.of(run.records()))


def _figures(run: RunFolder, history: History) -> dict[str, object]:
    model = run.config.model
    return {
        "run": str(run.folder),
        "parameters": account(model).parameters,
        "vocab_size": model.vocab_size,
        "steps": history.steps,
        "seconds": round(history.seconds, 3),
        "train_loss": history.train_loss,
        "val_loss": history.val_loss,
        "best_val_loss": history.best_val_loss,
        "first_loss": history.first_loss,
        "tokens_per_second": round(history.tokens / history.seconds, 1) if history.seconds else None,
        **{f"val_{name}": round(value, 2) for name, value in history.scores.items()},
    }


def write_report(run: RunFolder, task: Task) -> Finished:
    """Write samples.md and report.html from what metrics.jsonl holds, which is read once."""
    history = History.of(run.records())
    curve = history.curve(task.floor)
    result = _result(run, history, curve)
    page = TrainingReport(
        run.name, result, _facts(_figures(run, history)), curve, tuple(history.samples), to_toml(run.config)
    )
    write_text(run.folder / "report.html", render(page))
    write_text(run.folder / "samples.md", _samples_page(run.name, history))
    longer = ("resume", f"--train.steps {2 * run.config.train.steps}")
    return Finished(
        run.folder, curve, result, tuple(command(verb, run.folder, rest) for verb, rest in (*task.next_verbs, longer))
    )


def _samples_page(name: str, history: History) -> str:
    """The samples as Markdown that can be looked at in a terminal; of very many, some from all along the way."""
    samples = list(history.samples)
    total = history.samples.count
    some = f"{len(samples)} of {total:,} samples; metrics.jsonl holds them all.\n\n" if len(samples) < total else ""
    return f"# Samples of {one_line(name)}\n\n{some}" + "\n".join(
        _section(sample, history.origin) for sample in samples
    )


def _section(sample: Sample, origin: str | None) -> str:
    text = printable(sample.text)
    longest = max(map(len, re.findall("`{3,}", text)), default=2)
    fence = "`" * (longest + 1)  # no text ends it
    before = "Before the first step" + (f", as it came from {one_line(origin)}" if origin else "")
    return f"## {f'After {sample.step:,} steps' if sample.step else before}\n\n{fence}text\n{text}\n{fence}\n"


def _result(run: RunFolder, history: History, curve: Curve) -> str:
    """Where the training ended; a fresh model's loss is no part of one that began with a trained model."""
    if history.origin is None or history.best_val_loss is None or curve.floor is not None:
        return verdict(curve, run.config.model.vocab_size)
    return f"Trained further from {history.origin}: the best validation loss is {history.best_val_loss:.3f}."


def _facts(figures: dict[str, object]) -> tuple[tuple[str, str], ...]:
    shown = {
        "best_val_loss": ("best validation loss", "{:.4f}"),
        "val_bleu": ("validation BLEU, greedy", "{:.1f}"),
        "train_loss": ("training loss at the end", "{:.4f}"),
        "parameters": ("parameters", "{:,}"),
        "vocab_size": ("vocabulary", "{:,} tokens"),
        "steps": ("steps", "{:,}"),
        "seconds": ("time in steps", "{:,.0f} s"),
        "tokens_per_second": ("speed", "{:,.0f} tokens/s"),
    }
    known = {key: labels for key, labels in shown.items() if figures.get(key) is not None}
    return tuple((name, form.format(figures[key])) for key, (name, form) in known.items())
