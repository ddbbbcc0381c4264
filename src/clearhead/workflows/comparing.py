"""Compare trainings: figures, options that differ, curves over each other."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clearhead.errors import ClearheadError, UsageError
from clearhead.files import write_text
from clearhead.inspection import ComparedRun, ComparisonReport, Point, render_comparison
from clearhead.inspection.notebook import show_comparison
from clearhead.options import has_arguments
from clearhead.workflows.runs.find import all_runs, open_folder, runs_here
from clearhead.workflows.runs.folder import RunFolder
from clearhead.workflows.runs.history import History
from clearhead.workflows.runs.paths import RUNS
from clearhead.workflows.runs.report import facts_of, figures_of

PAGE = RUNS / "compare.html"
NATS, BITS = "nats per token", "bits per byte"
TEXT_OPTIONS = {f"data.{name}" for name in ("source", "target", "reverse", "corpus_characters", "val_fraction")}


@dataclass(frozen=True)
class RunComparison:
    """What was compared.

    Attributes:
        names: of the runs.
        figures: of each run, as in the JSON of `train`.
        facts: the same as a person reads them.
        options: those that are not the same in all runs: name -> one value for each run.
        unit: of the losses on the page.
        verdict: one sentence: which has the lowest loss, or why that cannot be said.
        page: the file with the curves and the samples.
        report: what is on it.
    """

    names: tuple[str, ...]
    figures: tuple[dict[str, Any], ...]
    facts: tuple[dict[str, str], ...]
    options: dict[str, tuple[object, ...]]
    unit: str
    verdict: str
    page: Path
    report: ComparisonReport = field(repr=False)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return show_comparison(self.report)


@has_arguments()
def compare_runs(*runs: str | Path | RunFolder, out: str | Path | None = None) -> RunComparison:
    """Compare runs, and write a page with their curves over each other and their samples side by side.

    Args:
        runs: folders or names, at least two; by default the two trainings that were written to last.
        out: the page; by default `runs/compare.html`.

    Raises:
        UsageError: fewer than two runs.
        DataError: there is no such run, or it is damaged.
        ClearheadError: the page cannot be written.
    """
    chosen = [open_folder(run) for run in runs] or [run for run in all_runs() if run.metrics.exists()][:2]
    if len(runs) == 1:
        raise UsageError(f"a comparison needs two runs; name another one beside {chosen[0].name}: {runs_here()}")
    if len(chosen) < 2:
        raise UsageError(f"a comparison needs two runs, and {runs_here()}")
    names = _names(chosen)
    histories = [History.of(run.records()) for run in chosen]
    figures = [figures_of(run, history) for run, history in zip(chosen, histories, strict=True)]
    facts = [dict(facts_of(figure)) for figure in figures]
    options = _differing(chosen)
    unit, factors = _unit(histories)
    losses = [
        None if history.best_val_loss is None else factor * history.best_val_loss
        for history, factor in zip(histories, factors, strict=True)
    ]
    if unit == NATS and len({run.tokenizer.fingerprint for run in chosen}) > 1:
        verdict = "Their tokens differ, so their losses in nats per token cannot be compared."
    elif options.keys() & TEXT_OPTIONS:
        verdict = "Their held-out texts differ, so their losses compare only roughly."
    else:
        verdict = _verdict(names, losses, unit)
    report = ComparisonReport(
        [
            ComparedRun(
                name,
                fact,
                _scaled(history.validation, factor),
                _scaled(history.evaluations, factor),
                _last_sample(history),
            )
            for name, fact, history, factor in zip(names, facts, histories, factors, strict=True)
        ],
        unit,
        verdict,
        {name: ["none" if value is None else str(value) for value in values] for name, values in options.items()},
    )
    page = PAGE if out is None else Path(out)
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, render_comparison(report))
    except OSError as error:
        raise ClearheadError(f"{page} cannot be written: {error.strerror or error}; choose another `out`") from None
    return RunComparison(tuple(names), tuple(figures), tuple(facts), options, unit, report.verdict, page, report)


def _names(runs: Sequence[RunFolder]) -> list[str]:
    """The runs' names; the folder of those that share one."""
    counts = Counter(run.name for run in runs)
    return [run.name if counts[run.name] == 1 else str(run.folder) for run in runs]


def _unit(histories: Sequence[History]) -> tuple[str, list[float]]:
    """Bits per byte if every run has recorded them, else nats per token; what each run's losses are multiplied by."""
    factors = [
        history.bits_per_byte / history.best_val_loss
        for history in histories
        if history.bits_per_byte is not None and history.best_val_loss
    ]
    return (BITS, factors) if len(factors) == len(histories) else (NATS, [1.0] * len(histories))


def _scaled(points: Iterable[Point], factor: float) -> tuple[Point, ...]:
    return tuple((x, factor * loss) for x, loss in points)


def _last_sample(history: History) -> str:
    samples = list(history.samples)
    return samples[-1].text if samples else ""


def _verdict(names: Sequence[str], best: Sequence[float | None], unit: str) -> str:
    measured = sorted((loss, name) for name, loss in zip(names, best, strict=True) if loss is not None)
    if len(measured) < 2:
        return "Fewer than two of them were evaluated."
    (lowest, winner), (second, _) = measured[:2]
    if lowest == second:
        return f"The lowest validation loss, {lowest:.4f} {unit}, is that of more than one."
    return f"{winner} has the lowest validation loss: {lowest:.4f} {unit}, {second - lowest:.4f} below the next."


def _differing(runs: Sequence[RunFolder]) -> dict[str, tuple[object, ...]]:
    settings = [dict(_flat(run.config.model_dump())) for run in runs]
    names = dict.fromkeys(name for options in settings for name in options)
    rows = {name: tuple(options.get(name) for options in settings) for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
