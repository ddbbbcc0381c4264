"""report.html: what a run was, how it went and what it writes, on one page that asks nobody for anything."""

from dataclasses import dataclass
from html import escape

from clearhead.inspection.curve import Curve, thin
from clearhead.inspection.svg import picture, words

MOST_ROWS = 40  # in the table of figures

STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #5a6372; --paper: #ffffff; --card: #f5f6f8; --line: #e0e3e8;
  --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --paper: #15181d; --card: #1d2127;
  --line: #2f353e; --accent: #62b5ea; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 52rem; padding: 3rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { margin: 2.8rem 0 .9rem; font-size: 1.2rem; }
.verdict { margin: .9rem 0 0; padding: .1rem 0 .1rem 1rem; border-left: 3px solid var(--accent); font-size: 1.1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1px; margin: 2rem 0 0;
  padding: 0; border: 1px solid var(--line); border-radius: 10px; overflow: hidden; background: var(--card); }
dl div { padding: .75rem 1rem; box-shadow: 0 0 0 1px var(--line); }
dt { color: var(--soft); font-size: .82rem; }
dt::first-letter { text-transform: uppercase; }
dd { margin: .1rem 0 0; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
svg.curve { display: block; width: 100%; height: auto; overflow: visible; }
figure { margin: 0; }
figcaption { margin-top: .5rem; color: var(--soft); font-size: .9rem; }
@media (max-width: 40rem) { svg.curve { font-size: 17px; } }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .5rem; }
th, td { padding: .35rem .75rem; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
summary { cursor: pointer; color: var(--accent); padding: .5rem 0; }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
pre { margin: 0; padding: 1rem 1.2rem; border: 1px solid var(--line); border-radius: 10px; background: var(--card);
  font: 14px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
h3 { margin: 1.4rem 0 .5rem; font-size: .95rem; color: var(--soft); font-weight: 600; }
.sample { font-family: Georgia, "Iowan Old Style", "Times New Roman", serif; font-size: 16px; }
footer { margin-top: 3.5rem; color: var(--soft); font-size: .85rem; }
"""

# The page may not load anything from anywhere; browsers hold it to that.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


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
    facts = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in report.facts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{_text(report.title)} · Clearhead</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{_text(report.title)}</h1>
<p class="verdict">{_text(report.verdict)}</p>
</header>
<main>
<dl>{facts}</dl>
<h2>Training curve</h2>
<figure>
{picture(report.curve, title=f"Training curve of {printable(report.title)}")}
<figcaption>{_text(words(report.curve))}</figcaption>
</figure>
{_figures(report.curve)}
{_samples(report.samples)}
{_configuration(report.configuration)}
</main>
<footer>Written by Clearhead. This page is complete in itself and loads nothing.</footer>
</body>
</html>
"""


def printable(text: str) -> str:
    """The text with what a page cannot hold replaced: control characters by their pictures, lone surrogates by `?`."""
    pictures = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
    return text.replace("\r\n", "\n").translate(pictures).encode("utf-8", "replace").decode("utf-8")


def _text(text: str) -> str:
    return escape(printable(text))


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
    return f'<h3>after {sample.step:,} steps</h3><pre class="sample">{_text(sample.text)}</pre>'


def _configuration(configuration: str) -> str:
    if not configuration:
        return ""
    return (
        f"<h2>Configuration</h2><details><summary>clearhead.toml</summary><pre>{_text(configuration)}</pre></details>"
    )
