"""A report as a web page: each fault with its picture, the line of code, why, and what to change."""

from collections.abc import Iterable, Mapping, Sequence
from textwrap import dedent
from typing import TYPE_CHECKING

from clearhead.doctor.catalogue.faults import CATALOGUE
from clearhead.doctor.report.findings import Evidence, Finding, Where
from clearhead.doctor.report.source import Excerpt, excerpt
from clearhead.doctor.report.verdict import Checked
from clearhead.pages import document, fragment, text

if TYPE_CHECKING:  # they show themselves by this module
    from clearhead.doctor.report.comparison import Comparison, Difference
    from clearhead.doctor.report.report import Report

STYLE = """
:root { --bad: #b3261e; --warn: #8a5a00; --good: #1b6e3c; --legal: #0072b2; --illegal: #d55e00; --missing: #b58900; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --warn: #f2c14e; --good: #7bd89b; --legal: #4f9fd0;
  --illegal: #ff8f4a; --missing: #f2c14e; } }
body { max-width: 60rem; }
.verdict.faulty { border-color: var(--bad); }
.verdict.healthy { border-color: var(--good); }
.verdict.unknown, .verdict.partial { border-color: var(--warn); }
article { margin: 2rem 0 0; padding: 1.2rem 1.5rem 1.5rem; border: 1px solid var(--line); border-radius: 10px;
  border-left: 4px solid var(--bad); }
article.warn { border-left-color: var(--warn); }
article h2 { margin: 0; }
article p { margin: .2rem 0; overflow-wrap: anywhere; }
.witness { margin: .6rem 0 0; font-size: 1.05rem; }
.numbers { color: var(--soft); font-size: .85rem; font-variant-numeric: tabular-nums; }
.status { font-weight: 700; text-transform: uppercase; font-size: .82em; letter-spacing: .04em; }
.fail .status, .status.fail { color: var(--bad); }
.warn .status, .status.warn { color: var(--warn); }
.status.pass { color: var(--good); }
.status.skip, .status.waived, .status.blocked { color: var(--soft); }
.sides { display: flex; flex-wrap: wrap; gap: 0 2rem; }
.sides > figure { flex: 0 1 20rem; margin-top: 1.4rem; }
.sides > div { flex: 1 1 20rem; min-width: 0; }
svg.matrix { display: block; width: 100%; max-width: 20rem; height: auto; }
svg.matrix text { fill: var(--soft); font-size: 9px; }
.cell { fill: var(--card); stroke: var(--line); stroke-width: .5; }
.legal { fill: var(--legal); }
.illegal { fill: var(--illegal); }
.cross { stroke: var(--paper); stroke-width: 1.6; fill: none; }
.missing { fill: none; stroke: var(--missing); stroke-width: 1.5; stroke-dasharray: 3 2; }
.legend svg { width: 1em; height: 1em; vertical-align: -.12em; }
dl { grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); }
pre.code { padding: .8rem 0; white-space: pre; overflow-x: auto; }
pre.code code { display: inline-block; min-width: 100%; font: inherit; }
pre.code span { display: block; padding: 0 1rem; }
pre.code .meant { background: color-mix(in srgb, var(--bad) 14%, transparent); box-shadow: inset 3px 0 var(--bad); }
.warn pre.code .meant { background: color-mix(in srgb, var(--warn) 14%, transparent);
  box-shadow: inset 3px 0 var(--warn); }
pre.code b { color: var(--soft); font-weight: 400; user-select: none; }
.wide { overflow-x: auto; }
.wide table { min-width: 36rem; }
td, th { text-align: left; vertical-align: top; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; overflow-wrap: normal; }
td.name, td.status { white-space: nowrap; }
li { margin: .3rem 0; overflow-wrap: anywhere; }
.otherwise { color: var(--soft); }
"""

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
    first = comparison.first
    facts = {
        "verdict": comparison.verdict,
        "weights": comparison.weights.sentence,
        "paths": "; ".join(comparison.paths),
    }
    notes = _list(map(text, comparison.weights.notes)) if comparison.weights.notes else ""
    main = ("" if first is None else _difference(first)) + _listed_facts(facts) + notes
    return fragment(f"{comparison.a} and {comparison.b}", comparison.summary, main, style=NOTEBOOK_STYLE)


def _difference(first: "Difference") -> str:
    grown = "".join(
        f'<tr><td class="name">{text(step.names)}</td><td class="number">{step.difference:.1e}</td></tr>'
        for step in first.growth
    )
    growth = f"<h3>How it grows</h3><table><tbody>{grown}</tbody></table>" if grown else ""
    sides = "".join(f"<h3>In {side}</h3>{_code_at(where)}" for side, where in (("A", first.a), ("B", first.b)))
    agreed = f"<p>The last that agreed: {text(first.agreed)}</p>" if first.agreed else ""
    return f"<article><h2>{text(first.sentence)}</h2><p>{text(first.path)}</p>{agreed}{sides}{growth}</article>"


def _main(report: "Report") -> str:
    sections = (
        _facts(report),
        "".join(_finding(finding) for finding in report.findings),
        _checks(report.checks),
        _assumptions(report),
        f"<h2>What was run</h2>{_list(text(path) for path in report.paths)}<p>{text(PROVED)}</p>",
    )
    return "\n".join(sections)


def _facts(report: "Report") -> str:
    judged = [check for check in report.checks if check.status not in ("skip", "blocked")]
    facts = {
        "verdict": report.verdict,
        "kind": report.kind,
        "checks with a result": f"{len(judged)} of {len(report.checks)}",
        "seconds": f"{report.seconds:.2f}",
    }
    return _listed_facts(facts)


def _listed_facts(facts: Mapping[str, str]) -> str:
    return f"<dl>{''.join(f'<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>' for k, v in facts.items())}</dl>"


def _finding(finding: Finding) -> str:
    others = [f"{text(c.id)} {text(CATALOGUE[c.id].title)} ({c.score:.0%})" for c in finding.alternatives]
    parts = (
        ("Why", f"<p>{text(finding.why)}</p>"),
        ("What to change", f"<p>{text(finding.fix)}</p>"),
        ("Or it is", _list(others) if others else ""),
        ("See it again", f"<pre>{text(finding.repro)}</pre>" if finding.repro else ""),
    )
    content = _where(finding.where) + "".join(f"<h3>{title}</h3>{body}" for title, body in parts if body)
    picture = _picture(finding.picture) if finding.picture else ""
    return f"""<article class="{text(finding.status)}">
<h2><span class="status">{text(finding.status)}</span> {text(finding.id)} {text(finding.title)}</h2>
<p class="witness">{text(finding.evidence.witness)}</p>
{_numbers(finding.evidence)}
<div class="sides">{picture}<div>{content}</div></div>
</article>
"""


def _numbers(evidence: Evidence) -> str:
    numbers = f"value {evidence.value:.3g}, threshold {evidence.threshold:.3g}, noise floor {evidence.noise_floor:.3g}"
    return f'<p class="numbers">{text(numbers)}</p>'


def _where(where: Where) -> str:
    if not where.place:
        return ""
    return f"<h3>Where</h3>{_code_at(where)}"


def _code_at(where: Where) -> str:
    code = excerpt(where.file, where.line)
    return f"<p>{text(where.place_and_op)}</p>" + ("" if code is None else _code(code))


def _code(code: Excerpt) -> str:
    width = len(str(code.first + len(code.lines)))
    lines = dedent("\n".join(code.lines)).split("\n")
    rows = "".join(
        f"<span{' class=meant' if number == code.meant else ''}><b>{number:>{width}}</b>  {text(line)}</span>"
        for number, line in enumerate(lines, code.first)
    )
    return f'<pre class="code"><code>{rows}</code></pre>'


def _picture(rows: Sequence[str]) -> str:
    """The matrix as a drawing: shapes say what the colors say."""
    columns = max(map(len, rows))
    width, height = MARGIN + CELL * columns, MARGIN + CELL * len(rows)
    places: dict[str, list[tuple[int, int]]] = {"cell": [], "legal": [], "illegal": [], "missing": []}
    for i, row in enumerate(rows):
        for j, sign in enumerate(row):
            places[KINDS.get(sign, "cell")].append((i, j))
    drawn = "".join(_drawn(kind, at) for kind, at in places.items() if at)
    numbers = "".join(
        f'<text x="{MARGIN + CELL * (j + 0.5):g}" y="{MARGIN - 6:g}" text-anchor="middle">{j}</text>'
        for j in range(0, columns, 4)
    )
    numbers += "".join(
        f'<text x="{MARGIN - 5:g}" y="{MARGIN + CELL * (i + 0.5) + 3:g}" text-anchor="end">{i}</text>'
        for i in range(0, len(rows), 4)
    )
    counts = ", ".join(f"{len(places[kind])} {kind}" for kind in LEGEND if places[kind])
    legend = "".join(
        f'<br><svg viewBox="{MARGIN:g} {MARGIN:g} {CELL:g} {CELL:g}" aria-hidden="true">{_drawn(kind, [(0, 0)])}</svg> '
        f"{text(kind)}: {text(meaning)}"
        for kind, meaning in LEGEND.items()
        if places[kind]
    )
    return (
        f'<figure><svg class="matrix" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="Which token moves which logits: {text(counts)}">{drawn}{numbers}</svg>'
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


def _assumptions(report: "Report") -> str:
    if not report.assumptions:
        return ""
    items = (
        f"{text(f'{about.about}: {about.value}')} ({text(', '.join(about.reasons) or 'nothing speaks against it')})"
        + (f'<br><span class="otherwise">{text(about.otherwise)}</span>' if about.otherwise else "")
        for about in report.assumptions
    )
    return f"<h2>What was assumed</h2>{_list(items)}"


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"
