"""What a training leaves in its folder: metrics.jsonl, samples.md, checkpoints, the model, report.html."""

import json
import math
import os
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from clearhead.files import write_text
from clearhead.inspection import Curve, Report, Sample, account, render, verdict
from clearhead.models import LanguageModel
from clearhead.options import to_toml
from clearhead.training import Evaluated, Event, Notice, Optimizer, SaveDue, Stepped, TrainingState, checkpoints
from clearhead.workflows.events import Averaged, Finished, Observer, Said, Sampled, command
from clearhead.workflows.run import Run
from clearhead.workflows.tasks import Task

KINDS = {Stepped: "step", Evaluated: "evaluation", Sampled: "sample", Averaged: "mean"}


class Recorder:
    """Consumes the training's events: writes what is to be kept and passes on what is to be seen."""

    def __init__(self, run: Run, model: LanguageModel, optimizer: Optimizer, task: Task, observe: Observer) -> None:
        self.run, self.model, self.optimizer, self.task, self.observe = run, model, optimizer, task, observe
        train = run.config.train
        self.keep = max(train.keep, train.average)  # what a mean is taken of must be there
        self.every = train.save_every

    def __enter__(self) -> Self:
        self.log = self.run.metrics.open("a", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.log.close()

    def take(self, event: Event) -> None:
        """One event of the loop."""
        match event:
            case Stepped():
                self._write(event)
                self.observe(event)
            case Evaluated():
                self._write(event)
                self.observe(event)
                self._sample(event.step)
            case SaveDue():
                self.save(event.state, best=event.best)
            case Notice():
                self.observe(Said(event.text))

    def save(self, state: TrainingState, *, best: bool) -> None:
        """A checkpoint of now; the run's own model follows the best one, and is never missing."""
        self.log.flush()  # a checkpoint never knows of steps that the log does not
        os.fsync(self.log.fileno())
        checkpoints.save(self.run.checkpoints, self.model, self.optimizer, state, keep=self.keep, every=self.every)
        if best or self.run.damage():
            self.run.save_model(self.model, self.task.special_tokens, step=state.step)

    def begin_from(self, told: str) -> None:
        """The model was trained before, elsewhere: where, and what it writes before the first step."""
        self._log({"kind": "origin", "step": 0, "from": told})
        self._sample(0)

    def averaged(self, event: Averaged) -> None:
        """What came of the mean of the last checkpoints."""
        self._write(event)
        verdict = "it is the run's model" if event.used else "a single one's is lower and stays the run's model"
        self.observe(
            Said(
                f"the mean of the last {event.checkpoints} checkpoints has validation loss {event.loss:.4f}: {verdict}"
            )
        )

    def _sample(self, step: int) -> None:
        example = self.task.example(self.model)
        sampled = Sampled(step, example.text, example.scores)
        self._write(sampled)
        self.observe(sampled)

    def _write(self, event: Stepped | Evaluated | Sampled | Averaged) -> None:
        self._log({"kind": KINDS[type(event)], **asdict(event)})

    def _log(self, record: dict[str, Any]) -> None:
        self.log.write(json.dumps({key: _finite(value) for key, value in record.items()}, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value  # JSON has no NaN


def forget_after(run: Run, step: int) -> None:
    """Cut metrics.jsonl back to the first `step` steps: what came after will come again, and so will a mean."""
    kept = [record for record in run.records() if record["step"] <= step and record["kind"] != "mean"]
    write_text(run.metrics, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept))


def curve_of(run: Run, floor: float | None) -> Curve:
    """The run's losses so far."""
    train: list[tuple[float, float]] = []
    validation: list[tuple[float, float]] = []
    for record in run.records():
        points = {"step": train, "evaluation": validation}.get(record["kind"])
        if points is not None and record["loss"] is not None:
            points.append((record["step"], record["loss"]))
    return Curve(tuple(train), tuple(validation), floor)


def validation_losses(run: Run) -> list[float]:
    """Those that were finite, in order; that of the mean of checkpoints last, where it is the run's model."""
    measured = (r for r in run.records() if r["kind"] == "evaluation" or (r["kind"] == "mean" and r["used"]))
    return [r["loss"] for r in measured if r["loss"] is not None]


def summary(run: Run) -> dict[str, Any]:
    """What `train` and `resume` give as JSON; losses are in nats per token."""
    model = run.config.model
    steps = [record for record in run.records() if record["kind"] == "step"]
    held_out = validation_losses(run)
    seconds = sum(record["seconds"] for record in steps)
    scores = [record.get("scores", {}) for record in run.records() if record["kind"] == "sample"]
    recent = [record["loss"] for record in steps[-50:] if record["loss"] is not None]
    return {
        "run": str(run.folder),
        "parameters": account(model).parameters,
        "vocab_size": model.vocab_size,
        "steps": len(steps),
        "seconds": round(seconds, 3),
        "train_loss": sum(recent) / len(recent) if recent else None,
        "val_loss": held_out[-1] if held_out else None,
        "best_val_loss": min(held_out, default=None),
        "first_loss": steps[0]["loss"] if steps else None,
        "tokens_per_second": round(sum(record["tokens"] for record in steps) / seconds, 1) if seconds else None,
        **{f"val_{name}": round(value, 2) for name, value in (scores[-1] if scores else {}).items()},
    }


def write_report(run: Run, task: Task) -> Finished:
    """Write samples.md and report.html from what metrics.jsonl holds."""
    samples = tuple(Sample(r["step"], r["text"]) for r in run.records() if r["kind"] == "sample")
    curve = curve_of(run, task.floor)
    said = _said(run, curve)
    page = Report(run.name, said, _facts(summary(run)), curve, samples, to_toml(run.config))
    (run.folder / "report.html").write_text(render(page), encoding="utf-8")
    sections = [f"## {_when(run, sample.step)}\n\n```text\n{sample.text}\n```\n" for sample in samples]
    (run.folder / "samples.md").write_text(f"# Samples of {run.name}\n\n" + "\n".join(sections), encoding="utf-8")
    longer = ("resume", f"--train.steps {2 * run.config.train.steps}")
    return Finished(
        run.folder, curve, said, tuple(command(verb, run.folder, rest) for verb, rest in (*task.next_verbs, longer))
    )


def _origin(run: Run) -> str | None:
    """Where the trained model came from that this training began with, if it did."""
    return next((str(record["from"]) for record in run.records() if record["kind"] == "origin"), None)


def _when(run: Run, step: int) -> str:
    origin = _origin(run)
    before = "Before the first step" + (f", as it came from {origin}" if origin else "")
    return f"After {step:,} steps" if step else before


def _said(run: Run, curve: Curve) -> str:
    """Where the training ended; a fresh model's loss is no part of one that began with a trained model."""
    origin, losses = _origin(run), validation_losses(run)
    if origin is None or not losses or curve.floor is not None:
        return verdict(curve, run.config.model.vocab_size)
    return f"Trained further from {origin}: the best validation loss is {min(losses):.3f}."


def _facts(figures: dict[str, Any]) -> tuple[tuple[str, str], ...]:
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
    known = {key: words for key, words in shown.items() if figures.get(key) is not None}
    return tuple((name, form.format(figures[key])) for key, (name, form) in known.items())
