"""What a notebook shows of traces, costs, trainings and comparisons: pictures and short tables. Imports no torch."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from clearhead.inspection.curves.comparison import STYLE as COMPARISON_STYLE
from clearhead.inspection.curves.comparison import ComparisonReport, main_of
from clearhead.inspection.curves.report import TrainingReport
from clearhead.inspection.curves.svg import describe_curve, picture
from clearhead.inspection.heat import SVG_STYLE, paths, shrunk
from clearhead.pages import fragment, one_line, text
from clearhead.wording import counted, in_bytes

if TYPE_CHECKING:
    from clearhead.inspection.capture.trace import ByLayer, Trace
    from clearhead.inspection.cost.estimate import CostEstimate

MAX_NAMES = 500  # of a trace
MAX_HEADS, SIDE, SHADES = 144, 12, 6  # of its small maps, their cells along a side, and shades

STYLE = (
    SVG_STYLE
    + """
.maps { display: grid; grid-template-columns: auto repeat(var(--heads), 3.4rem); gap: .35rem; align-items: center;
  justify-content: start; font-size: .8rem; overflow-x: auto; }
.maps svg { display: block; width: 3.4rem; height: 3.4rem; border: 1px solid var(--line); border-radius: 4px; }
th[scope=row], .name { text-align: left; overflow-wrap: anywhere; }
.bar { width: 12rem; } .bar i { display: block; height: .7rem; width: calc(var(--p) * 100%); min-width: 1px;
  background: var(--accent); border-radius: 2px; }
figure { max-width: 46rem; } svg.curve { width: 100%; height: auto; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""
)


def show_trace(trace: "Trace") -> str:
    """Small maps of the attention that was recorded, and every name with its shape."""
    maps = "".join(
        _maps(name, layers)
        for name, layers in (
            ("Self-attention", trace.attention),
            ("Cross-attention", trace.cross_attention),
            ("Encoder attention", trace.encoder_attention),
        )
    )
    names = trace.names[:MAX_NAMES]
    kept = ((name, trace.tensor(name)) for name in names)
    rows = ((name, " x ".join(map(str, value.shape)), str(value.dtype).removeprefix("torch.")) for name, value in kept)
    cut = f", the first {MAX_NAMES}" if len(names) < len(trace) else ""
    table = _table(("name", "shape", "type"), rows)
    listed = f"<details><summary>Every name{cut}</summary>{table}</details>"
    size = sum(trace.tensor(name).nbytes for name in trace)
    return fragment("Trace", f"{counted(len(trace), 'activation')}, {in_bytes(size)}.", maps + listed, style=STYLE)


def _maps(title: str, layers: "ByLayer") -> str:
    """The first row of the batch, layers by heads; nothing where none was recorded."""
    cells, shown, n_heads = list[str](), 0, 0
    for layer in range(len(layers)):
        weights = layers.get(layer)
        if weights is None:
            continue
        n_heads = min(weights.shape[1], MAX_HEADS)
        if shown + n_heads > MAX_HEADS:
            break
        shown += n_heads
        cells.append(f"<span>layer {layer}</span>")
        for head in range(n_heads):
            small = shrunk(weights[0, head].astype("float64"), SIDE)
            cells.append(
                f'<svg class="heat" viewBox="0 0 {small.shape[1]} {small.shape[0]}" preserveAspectRatio="none" '
                f'role="img" aria-label="{title} of layer {layer}, head {head}">'
                f'<g class="cells">{paths(small, SHADES)}</g></svg>'
            )
    if not cells:
        return ""
    return f'<p>{title}</p><div class="maps" style="--heads:{n_heads}">{"".join(cells)}</div>'


def show_costs(costs: "CostEstimate") -> str:
    """Parameters by part as bars, and what training and generating hold in memory."""
    total = max(1, costs.parameters)
    parts = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{count:,}</td><td>{count / total:.1%}</td>'
        f'<td class="bar"><i style="--p:{count / total:.4f}"></i></td></tr>'
        for name, count in costs.parts.items()
    )
    memory = _table(("memory", ""), ((name, in_bytes(size)) for name, size in costs.bytes.items()))
    if costs.shared is not None:
        head = (f"on each of {costs.shared.devices:,} devices", *(name.upper() for name in costs.shared.bytes))
        ddp, fsdp = costs.shared.bytes.values()
        memory += _table(head, ((use, in_bytes(size), in_bytes(fsdp[use])) for use, size in ddp.items()))
    verdict = f"{costs.parameters:,} parameters, {costs.flops_per_token:,} FLOPs per token."
    return fragment("Cost on paper", verdict, f"<table><tbody>{parts}</tbody></table>{memory}", style=STYLE)


def show_training(report: TrainingReport) -> str:
    """The curve of a training, its figures and its options."""
    curve = ""
    if report.curve.train or report.curve.validation:
        drawn = picture(report.curve, title=f"Training curve of {one_line(report.title)}")
        curve = f"<figure>{drawn}<figcaption>{text(describe_curve(report.curve))}</figcaption></figure>"
    facts = _table(("", ""), report.facts)
    options = f"<details><summary>clearhead.toml</summary><pre>{text(report.configuration)}</pre></details>"
    main = curve + facts + (options if report.configuration else "")
    return fragment(report.title, report.verdict, main, style=STYLE)


def show_comparison(report: ComparisonReport) -> str:
    """The curves of several trainings over each other, their figures and the options that differ."""
    return fragment("Comparison of runs", report.verdict, main_of(report), style=STYLE + COMPARISON_STYLE)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    heads = "".join(f'<th scope="col" class="name">{text(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{text(name)}</th>{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    return f"<table>{f'<thead><tr>{heads}</tr></thead>' if any(head) else ''}<tbody>{body}</tbody></table>"
