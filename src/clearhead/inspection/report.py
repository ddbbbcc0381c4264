"""report.html: what a run was, how it went and what it writes, on one page that asks nobody for anything."""

from dataclasses import dataclass

from clearhead.inspection.curve import Curve, thin
from clearhead.inspection.svg import picture, words
from clearhead.pages import document, printable, text

MOST_ROWS = 40  # in the table of figures

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
class Report:
    """What the page shows, as plain data.

    Args:
        title: the run's name.
        verdict: one sentence on the result; `curve.verdict` makes one.
        facts: (name, value) pairs, shown in this order.
        curve: the losses.
        samples: texts written on the way, the last one shown first.
        configuration: the run's clearhead.toml.
    """

    title: str
    verdict: str
    facts: tuple[tuple[str, str], ...]
    curve: Curve
    samples: tuple[Sample, ...] = ()
    configuration: str = ""


def render(report: Report) -> str:
    """The page as one self-contained HTML document; every given text is escaped."""
    facts = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in report.facts)
    main = f"""<dl>{facts}</dl>
<h2>Training curve</h2>
<figure>
{picture(report.curve, title=f"Training curve of {printable(report.title)}")}
<figcaption>{text(words(report.curve))}</figcaption>
</figure>
{_figures(report.curve)}
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
    marks = [step for step, _ in thin(curve.validation or curve.train, MOST_ROWS)]
    rows: list[tuple[float, float | None, float | None]] = []
    for before, step in zip([-1.0, *marks], marks, strict=False):
        since = [loss for at, loss in curve.train if before < at <= step]
        rows.append((step, sum(since) / len(since) if since else None, validation.get(step)))
    return rows


def _number(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _samples(samples: tuple[Sample, ...]) -> str:
    """The newest text open to the eye, how it came to that behind a fold."""
    if not samples:
        return ""
    newest, *earlier = sorted(samples, key=lambda sample: sample.step, reverse=True)
    folded = "".join(_sample(sample) for sample in reversed(earlier))
    fold = f"<details><summary>What it wrote on the way</summary>{folded}</details>" if earlier else ""
    return f"<h2>What it writes</h2>{_sample(newest)}{fold}"


def _sample(sample: Sample) -> str:
    return f'<h3>after {sample.step:,} steps</h3><pre class="sample">{text(sample.text)}</pre>'


def _configuration(configuration: str) -> str:
    if not configuration:
        return ""
    return f"<h2>Configuration</h2><details><summary>clearhead.toml</summary><pre>{text(configuration)}</pre></details>"
