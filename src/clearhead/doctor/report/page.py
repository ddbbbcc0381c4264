"""A report as a web page: each fault with its picture, the line of code, why, and what to change."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from textwrap import dedent
from typing import TYPE_CHECKING

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.report.findings import Finding, Where, excerpt
from clearhead.doctor.report.verdict import Checked
from clearhead.pages import document, fragment, text

if TYPE_CHECKING:  # they show themselves by this module
    from clearhead.doctor.report.comparison import Comparison, Difference
    from clearhead.doctor.report.report import Report

STYLE = files("clearhead.doctor.report").joinpath("page.css").read_text(encoding="utf-8")
# A notebook is light or dark by itself: colors that can be read on both.
NOTEBOOK_STYLE = """
--bad: #d1453b; --warn: #a87400; --good: #2e8b57; --legal: #2f86c9; --illegal: #e0661f; --missing: #b58900;
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); margin: 1rem 0; }
dt { color: var(--soft); font-size: .85em; } dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
""" + STYLE.partition("body {")[2].partition("}")[2]

CELL = 14.0  # units of the picture
MARGIN = 20.0  # for the numbers along its sides
KINDS = {"#": "legal", "!": "illegal", "-": "missing"}  # of places in a picture; all others are empty
LEGEND = {
    "legal": "may move it, and does",
    "illegal": "must not move it, and does",
    "missing": "should move it, and does not",
}
SQUARE, CROSS = (1, "h12v12h-12z"), (4, "l6 6m0 -6l-6 6")  # in a cell: how far from its corner, and the lines
PROVED = (
    "Every failure was observed: two inputs, and an output that moved when it must not, or stayed when it must move. "
    "The absence of faults is proved for what was run: these paths and their shapes, with almost any weights."
)


def render(report: "Report") -> str:
    """One self-contained HTML document, with every text escaped."""
    return document(report.target, report.summary, _main(report), style=STYLE, mood=report.verdict)


def show(report: "Report") -> str:
    """What a notebook shows of a report."""
    return fragment(report.target, report.summary, _main(report), style=NOTEBOOK_STYLE)


def show_comparison(comparison: "Comparison") -> str:
    """What a notebook shows of a comparison."""
    facts = {
        "verdict": comparison.verdict,
        "weights": comparison.weights.sentence,
        "paths": "; ".join(comparison.paths),
    }
    first = "" if comparison.first is None else _difference(comparison.first)
    main = first + _facts(facts) + _list(map(text, comparison.weights.notes))
    return fragment(f"{comparison.a} and {comparison.b}", comparison.summary, main, style=NOTEBOOK_STYLE)


def _difference(first: "Difference") -> str:
    grown = "".join(
        f'<tr><td class="name">{text(step.names)}</td><td class="number">{step.difference:.1e}</td></tr>'
        for step in first.growth
    )
    parts = {
        "In A": _code_at(first.a),
        "In B": _code_at(first.b),
        "How it grows": f"<table><tbody>{grown}</tbody></table>" if grown else "",
    }
    agreed = f"<p>The last that agreed: {text(first.agreed)}</p>" if first.agreed else ""
    return f"<article><h2>{text(first.sentence)}</h2><p>{text(first.path)}</p>{agreed}{_parts(parts)}</article>"


def _main(report: "Report") -> str:
    judged = [check for check in report.checks if check.status not in ("skip", "blocked")]
    facts = {
        "verdict": report.verdict,
        "kind": report.kind,
        "checks with a result": f"{len(judged)} of {len(report.checks)}",
        "seconds": f"{report.seconds:.2f}",
    }
    assumed = _list(
        f"{text(f'{about.about}: {about.value}')} ({text(', '.join(about.reasons) or 'nothing speaks against it')})"
        + (f'<br><span class="otherwise">{text(about.otherwise)}</span>' if about.otherwise else "")
        for about in report.assumptions
    )
    sections = (
        _facts(facts),
        "".join(_finding(finding) for finding in report.findings),
        _checks(report.checks),
        f"<h2>What was assumed</h2>{assumed}" if assumed else "",
        f"<h2>What was run</h2>{_list(map(text, report.paths))}<p>{text(PROVED)}</p>",
    )
    return "\n".join(sections)


def _finding(finding: Finding) -> str:
    evidence = finding.evidence
    numbers = f"value {evidence.value:.3g}, threshold {evidence.threshold:.3g}, noise floor {evidence.noise_floor:.3g}"
    parts = {
        "Where": _code_at(finding.where),
        "Why": f"<p>{text(finding.why)}</p>",
        "What to change": f"<p>{text(finding.fix)}</p>",
        "Or it is": _list(text(f"{c.id} {CATALOGUE[c.id].title} ({c.score:.0%})") for c in finding.alternatives),
        "See it again": f"<pre>{text(finding.repro)}</pre>" if finding.repro else "",
    }
    picture = _picture(finding.picture) if finding.picture else ""
    return f"""<article class="{text(finding.status)}">
<h2><span class="status">{text(finding.status)}</span> {text(finding.id)} {text(finding.title)}</h2>
<p class="witness">{text(evidence.witness)}</p>
<p class="numbers">{text(numbers)}</p>
<div class="sides">{picture}<div>{_parts(parts)}</div></div>
</article>
"""


def _code_at(where: Where) -> str:
    """The place, and its lines of code as far as they can be read."""
    code = excerpt(where.file, where.line)
    heading = f"<p>{text(where.place_and_op)}</p>" if where.place else ""
    if code is None:
        return heading
    width = len(str(code.first + len(code.lines)))
    rows = "".join(
        f"<span{' class=meant' if number == code.meant else ''}><b>{number:>{width}}</b>  {text(line)}</span>"
        for number, line in enumerate(dedent("\n".join(code.lines)).split("\n"), code.first)
    )
    return f'{heading}<pre class="code"><code>{rows}</code></pre>'


def _picture(rows: Sequence[str]) -> str:
    """The matrix as a drawing: shapes say what the colors say."""
    columns = max(map(len, rows))
    places: dict[str, list[tuple[int, int]]] = {"cell": [], "legal": [], "illegal": [], "missing": []}
    for i, row in enumerate(rows):
        for j, sign in enumerate(row):
            places[KINDS.get(sign, "cell")].append((i, j))
    drawn = "".join(_drawn(kind, at) for kind, at in places.items() if at)
    centers = [MARGIN + CELL * (number + 0.5) for number in range(max(columns, len(rows)))]
    above = [(j, centers[j], MARGIN - 6, "middle") for j in range(0, columns, 4)]
    beside = [(i, MARGIN - 5, centers[i] + 3, "end") for i in range(0, len(rows), 4)]
    numbers = "".join(
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{number}</text>' for number, x, y, anchor in above + beside
    )
    counts = ", ".join(f"{len(places[kind])} {kind}" for kind in LEGEND if places[kind])
    legend = "".join(
        f'<br><svg viewBox="{MARGIN:g} {MARGIN:g} {CELL:g} {CELL:g}" aria-hidden="true">{_drawn(kind, [(0, 0)])}</svg> '
        f"{text(kind)}: {text(meaning)}"
        for kind, meaning in LEGEND.items()
        if places[kind]
    )
    return (
        f'<figure><svg class="matrix" viewBox="0 0 {MARGIN + CELL * columns:g} {MARGIN + CELL * len(rows):g}" '
        f'role="img" aria-label="Which token moves which logits: {text(counts)}">{drawn}{numbers}</svg>'
        f'<figcaption>Rows are logits, columns the tokens that move them.<span class="legend">{legend}</span>'
        "</figcaption></figure>"
    )


def _drawn(kind: str, places: Sequence[tuple[int, int]]) -> str:
    """Places of one kind as squares; the illegal ones are crossed."""
    shapes = {kind: SQUARE, "cross": CROSS} if kind == "illegal" else {kind: SQUARE}
    drawings = (
        (name, "".join(f"M{MARGIN + CELL * j + inset:g} {MARGIN + CELL * i + inset:g}{lines}" for i, j in places))
        for name, (inset, lines) in shapes.items()
    )
    return "".join(f'<path class="{name}" d="{path}"/>' for name, path in drawings)


def _checks(checks: Sequence[Checked]) -> str:
    rows = "".join(
        f'<tr><td class="name">{text(check.name)}</td><td class="status {text(check.status)}">{text(check.status)}</td>'
        f"<td>{text(check.note)}</td><td>{text(' '.join(check.covers))}</td>"
        f'<td class="number">{check.milliseconds:,.0f}</td></tr>'
        for check in checks
    )
    heads = '<th scope="col">check</th><th scope="col"></th><th scope="col">note</th><th scope="col">can find</th>'
    return (
        f'<h2>Every check</h2><div class="wide"><table><thead><tr>{heads}<th scope="col" class="number">ms</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _facts(facts: Mapping[str, str]) -> str:
    return f"<dl>{''.join(f'<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>' for k, v in facts.items())}</dl>"


def _parts(parts: Mapping[str, str]) -> str:
    """Those that hold anything, under their titles."""
    return "".join(f"<h3>{title}</h3>{body}" for title, body in parts.items() if body)


def _list(items: Iterable[str]) -> str:
    rows = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""
