"""report.html: what a run was, how it went and what it writes, on one self-contained page."""

from bisect import bisect_left
from dataclasses import dataclass

from clearhead.inspection.curves.curve import Curve, Point, thin
from clearhead.inspection.curves.svg import Series, chart, describe_curve, picture
from clearhead.pages import document, one_line, text
from clearhead.wording import counted

MAX_ROWS = 40  # in the table of figures
MAX_SAMPLES = 24

STYLE = """
svg.curve { display: block; width: 100%; height: auto; overflow: visible; }
@media (max-width: 40rem) { svg.curve { font-size: 17px; } }
.sample { font-family: Georgia, "Iowan Old Style", "Times New Roman", serif; font-size: 16px; }
"""


@dataclass(frozen=True)
class Sample:
    """What the model wrote after `step` steps."""

    step: int
    text: str


@dataclass(frozen=True)
class Measurement:
    """What was measured at each step beside the loss, as (step, value) points."""

    name: str
    points: tuple[Point, ...]
    logarithmic: bool = False


@dataclass(frozen=True)
class TrainingReport:
    """What the page shows, as plain data.

    Args:
        title: the run's name.
        verdict: one sentence on the result; `curve.verdict` makes one.
        facts: (name, value) pairs, shown in this order.
        curve: the losses.
        samples: texts written on the way, the last one shown first.
        configuration: the run's clearhead.toml.
        measures: what else was measured on the way.
    """

    title: str
    verdict: str
    facts: tuple[tuple[str, str], ...]
    curve: Curve
    samples: tuple[Sample, ...] = ()
    configuration: str = ""
    measures: tuple[Measurement, ...] = ()


def render(report: TrainingReport) -> str:
    """The page as one self-contained HTML document; every given text is escaped."""
    facts = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in report.facts)
    main = f"""<dl>{facts}</dl>
<h2>Training curve</h2>
<figure>
{picture(report.curve, title=f"Training curve of {one_line(report.title)}")}
<figcaption>{text(describe_curve(report.curve))}</figcaption>
</figure>
{_figures(report.curve)}
{_measures(report.measures)}
{_samples(report.samples)}
{_configuration(report.configuration)}"""
    return document(report.title, report.verdict, main, style=STYLE)


def _figures(curve: Curve) -> str:
    """The curve's numbers as a table: at each validation, or along the training where there was none."""
    rows = _rows(curve)
    if not rows:
        return ""
    body = "".join(
        f"<tr><td>{step:,.6g}</td><td>{_number(train)}</td><td>{_number(validation)}</td></tr>"
        for step, train, validation in rows
    )
    return (
        "<details><summary>The figures behind the curve</summary><table><caption>Loss in nats per token</caption>"
        '<thead><tr><th scope="col">step</th><th scope="col">training</th><th scope="col">validation</th></tr></thead>'
        f"<tbody>{body}</tbody></table></details>"
    )


def _rows(curve: Curve) -> list[tuple[float, float | None, float | None]]:
    """(step, mean training loss since the row before, validation loss)."""
    validation = dict(curve.validation)
    marks = sorted({step for step, _ in thin(curve.validation or curve.train, MAX_ROWS)})
    sums, counts = [0.0] * len(marks), [0] * len(marks)
    for step, loss in curve.train:
        row = bisect_left(marks, step)
        if row < len(marks):
            sums[row] += loss
            counts[row] += 1
    means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
    return [(step, mean, validation.get(step)) for step, mean in zip(marks, means, strict=True)]


def _measures(measures: tuple[Measurement, ...]) -> str:
    drawn = "".join(map(_measure, measures))
    return drawn and f"<h2>Training metrics</h2>{drawn}"


def _measure(measure: Measurement) -> str:
    """Nothing where there is no line to draw."""
    if len(measure.points) < 2:
        return ""
    series = (Series(measure.name, measure.points),)
    slug = measure.name.replace(" ", "-")
    drawn = chart(slug, measure.name, measure.name, series, logarithmic=measure.logarithmic)
    return f"<figure>{drawn}</figure>"


def _number(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _samples(samples: tuple[Sample, ...]) -> str:
    """The newest text open to the eye, how it came to that behind a fold."""
    if not samples:
        return ""
    *earlier, newest = thin(tuple(sorted(samples, key=lambda sample: sample.step)), MAX_SAMPLES)
    folded = "".join(map(_sample, earlier))
    fold = f"<details><summary>Earlier samples</summary>{folded}</details>" if earlier else ""
    return f"<h2>What it writes</h2>{_sample(newest)}{fold}"


def _sample(sample: Sample) -> str:
    return f'<h3>after {counted(sample.step, "step")}</h3><pre class="sample">{text(sample.text)}</pre>'


def _configuration(configuration: str) -> str:
    if not configuration:
        return ""
    return f"<h2>Configuration</h2><details><summary>clearhead.toml</summary><pre>{text(configuration)}</pre></details>"
