"""What metrics.jsonl amounts to: the figures of a run as JSON, samples.md, report.html."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clearhead.files import write_text
from clearhead.inspection import Curve, Measurement, Sample, TrainingReport, estimate_cost, render, smooth, verdict
from clearhead.options import to_toml
from clearhead.pages import one_line, printable
from clearhead.training import checkpoints
from clearhead.wording import counted, in_bytes
from clearhead.workflows.events import Finished, command
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.history import RECENT, History
from clearhead.workflows.tasks import Task


def summary(run: RunFolder) -> dict[str, Any]:
    """The JSON of `train` and `resume`; losses are in nats per token."""
    return figures_of(run, History.of(run.records()))


def figures_of(run: RunFolder, history: History) -> dict[str, Any]:
    """The figures of a run whose history is known."""
    model = run.config.model
    return {
        "run": str(run.folder),
        "parameters": estimate_cost(model).parameters,
        "vocab_size": model.vocab_size,
        "steps": history.steps,
        "seconds": round(history.seconds, 3),
        "train_loss": history.train_loss,
        "val_loss": history.val_loss,
        "best_val_loss": history.best_val_loss,
        "first_loss": history.first_loss,
        "tokens_per_second": round(history.tokens / history.seconds, 1) if history.seconds else None,
        **({} if history.bits_per_byte is None else {"bits_per_byte": history.bits_per_byte}),
        **{f"val_{name}": round(value, 2) for name, value in history.scores.items()},
        **({} if history.grammar is None else history.grammar.shares()),
    }


def write_report(run: RunFolder, task: Task) -> Finished:
    """Write samples.md and report.html from what metrics.jsonl holds, which is read once."""
    history = History.of(run.records())
    curve = history.curve(task.floor, task.bytes_per_token)
    result = _result(run, history, curve)
    for name, page in _pages(run, history, curve, result).items():
        write_text(run.folder / name, page)
    longer = ("resume", "--train.steps", str(2 * run.config.train.steps))
    following = (*task.next_verbs, longer, ("serve",))
    return Finished(run.folder, curve, result, tuple(command(verb, run.folder, *rest) for verb, *rest in following))


def is_complete(run: RunFolder, task: Task) -> bool:
    """Whether a training has nothing left to do: all steps are saved, the best model is the run's, and it is reported.

    Raises:
        DataError: there are checkpoints, and every one is damaged.
    """
    train, checkpoint = run.config.train, checkpoints.newest(run.checkpoints)
    if checkpoint is None or checkpoint.notices:
        return False
    state = checkpoints.read_state(checkpoint.path)
    if state.step != train.steps or run.damage() or run.model_step < (state.best_step or 0):
        return False
    history = History.of(run.records())
    if run.has_damaged_records or (train.average_checkpoints > 1 and not history.has_mean):
        return False
    curve = history.curve(task.floor, task.bytes_per_token)
    pages = _pages(run, history, curve, _result(run, history, curve))
    return all(_holds(run.folder / name, page) for name, page in pages.items())


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode("utf-8")


def _pages(run: RunFolder, history: History, curve: Curve, result: str) -> dict[str, str]:
    """What a person reads of a training, by the name of the file."""
    measures = (
        Measurement("gradient norm before clipping", smooth(tuple(history.gradient_norms)), logarithmic=True),
        Measurement("learning rate", tuple(history.learning_rates)),
        Measurement("tokens per second", smooth(tuple(history.speeds))),
        Measurement("model FLOPs utilization in percent", smooth(tuple(history.mfu))),
    )
    report = replace(report_of(run, history, curve, result), samples=tuple(history.samples), measures=measures)
    return {"report.html": render(report), "samples.md": _samples_page(run.name, history)}


def report_of(run: RunFolder, history: History, curve: Curve, result: str | None = None) -> TrainingReport:
    """The figures, the curve and the options of a run, without its samples."""
    result = _result(run, history, curve) if result is None else result
    facts = facts_of(figures_of(run, history))
    if history.peak_memory is not None:
        facts += (("peak memory of the first process", in_bytes(history.peak_memory)),)
    return TrainingReport(run.name, result, facts, curve, configuration=to_toml(run.config))


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
    heading = f"After {counted(sample.step, 'step')}" if sample.step else before
    return f"## {heading}\n\n{fence}text\n{text}\n{fence}\n"


def _result(run: RunFolder, history: History, curve: Curve) -> str:
    """Where the training ended; a fresh model's loss is no part of one that began with a trained model."""
    if history.origin is None or history.best_val_loss is None or curve.floor is not None:
        return verdict(curve, run.config.model.vocab_size)
    return f"Trained further from {history.origin}: the best validation loss is {history.best_val_loss:.3f}."


def facts_of(figures: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The figures as a person reads them, the most telling first."""
    shown = {
        "best_val_loss": ("best validation loss", "{:.4f}"),
        "bits_per_byte": ("the same in bits per byte", "{:.4f}"),
        "val_bleu": ("validation BLEU, greedy", "{:.1f}"),
        "accepted_sentences": ("sampled sentences that the corpus's grammar accepts", "{:.1%}"),
        "accepted_stories": ("sampled stories that it accepts", "{:.1%}"),
        "agreement": ("agreement in samples", "{:.1%}"),
        "kept_names": ("mentions of a hero that keep the name", "{:.1%}"),
        "train_loss": ("training loss at the end", "{:.4f}, " + _averaged(figures.get("steps") or 0)),
        "parameters": ("parameters", "{:,}"),
        "vocab_size": ("vocabulary", "{:,} tokens"),
        "steps": ("steps", "{:,}"),
        "seconds": ("time in steps", "{:,.0f} s"),
        "tokens_per_second": ("speed", "{:,.0f} tokens/s"),
    }
    known = {key: labels for key, labels in shown.items() if figures.get(key) is not None}
    return tuple((name, form.format(figures[key])) for key, (name, form) in known.items())


def _averaged(steps: int) -> str:
    """Over what a training loss is the mean; a single batch's says little."""
    return f"mean of the last {RECENT} steps" if steps > RECENT else f"mean of {counted(steps, 'step')}"
