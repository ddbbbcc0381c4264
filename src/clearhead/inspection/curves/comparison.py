"""Several trainings on one page: their curves over each other, what differs in their options, and what they write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clearhead.inspection.curves.curve import Point
from clearhead.inspection.curves.svg import COLORS, HEIGHT, Series, chart
from clearhead.pages import document, text

STYLE = """
svg.curve { display: block; width: 100%; height: auto; overflow: visible; }
body { max-width: 68rem; }
.wide { overflow-x: auto; }
th[scope=row] { text-align: left; white-space: nowrap; }
.chip { display: inline-block; width: 1.4em; height: .35em; margin-right: .5em; vertical-align: middle; }
.samples { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem; }
.sample { font-family: Georgia, "Iowan Old Style", "Times New Roman", serif; font-size: 16px; }
""" + "".join(
    f".chip{index} {{ background: {light}; }}\n"
    f"@media (prefers-color-scheme: dark) {{ .chip{index} {{ background: {dark}; }} }}\n"
    for index, (light, dark) in enumerate(COLORS)
)


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs.

    Args:
        name: of the run.
        figures: what it came to, by name, as a person reads it.
        by_step: (step, validation loss).
        by_seconds: (seconds in steps until then, validation loss).
        sample: the last text that it wrote.
    """

    name: str
    figures: Mapping[str, str]
    by_step: tuple[Point, ...]
    by_seconds: tuple[Point, ...]
    sample: str = ""


@dataclass(frozen=True)
class ComparisonReport:
    """What the page shows.

    Args:
        runs: at least two.
        unit: of their losses.
        verdict: one sentence.
        options: those that are not the same in all runs: name -> one value for each run, as text.
    """

    runs: Sequence[ComparedRun]
    unit: str
    verdict: str
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)


def render_comparison(report: ComparisonReport) -> str:
    """The page as one self-contained HTML document; every given text is escaped."""
    return document("Comparison of runs", report.verdict, main_of(report), style=STYLE)


def main_of(report: ComparisonReport) -> str:
    """The body of the page."""
    head = "".join(f'<th scope="col">{_chip(index)}{text(run.name)}</th>' for index, run in enumerate(report.runs))
    figures = {name: [run.figures.get(name, "-") for run in report.runs] for run in report.runs for name in run.figures}
    samples = "".join(
        f'<div><h3>{_chip(index)}{text(run.name)}</h3><pre class="sample">{text(run.sample)}</pre></div>'
        for index, run in enumerate(report.runs)
        if run.sample
    )
    return f"""<h2>Validation loss</h2>
{_chart(report, "steps", [run.by_step for run in report.runs])}
{_chart(report, "seconds in steps", [run.by_seconds for run in report.runs])}
<h2>Figures</h2>
{_table(head, figures)}
<h2>Options that differ</h2>
{_table(head, report.options) if report.options else "<p>None.</p>"}
{f'<h2>What they write</h2><div class="samples">{samples}</div>' if samples else ""}"""


def _chart(report: ComparisonReport, x_name: str, lines: Sequence[tuple[Point, ...]]) -> str:
    if not any(lines):
        return "<p>No validation losses were recorded.</p>"
    series = [Series(run.name, points) for run, points in zip(report.runs, lines, strict=True)]
    low = min(loss for line in lines for _, loss in line)
    name, title = x_name.partition(" ")[0], f"Validation loss over {x_name}"
    unit = f"validation loss in {report.unit}"
    drawn = chart(name, title, unit, series, x_name=x_name, logarithmic=low > 0.1, height=HEIGHT)
    return f"<figure>{drawn}</figure>"


def _table(head: str, rows: Mapping[str, Sequence[str]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{text(name)}</th>{"".join(f"<td>{text(value)}</td>" for value in values)}</tr>'
        for name, values in rows.items()
    )
    return f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _chip(index: int) -> str:
    return f'<span class="chip chip{index % len(COLORS)}"></span>'
