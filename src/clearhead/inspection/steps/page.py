"""The table of steps as part of a page, and as a picture. Every text goes through `pages.text`."""

from typing import TYPE_CHECKING

from clearhead.inspection.steps.folding import Repeats, folded
from clearhead.pages import text
from clearhead.wording import in_bytes

if TYPE_CHECKING:
    from clearhead.inspection.steps.table import TraceStep, TraceTable

MODEL = "(model)"  # in the position of the empty path
STYLE = """
body { max-width: 76rem; }
.steps { overflow-x: auto; }
.steps table { min-width: 54rem; font-size: .85rem; }
.steps td, .steps th { text-align: left; padding: .2rem .6rem; vertical-align: top; }
.steps td.number, .steps th.number { text-align: right; white-space: nowrap; }
.steps td.axes { white-space: nowrap; }
dt::first-letter { text-transform: none; }
.steps tr.same td { color: var(--soft); font-style: italic; }
"""
PICTURE_STYLE = """
.steps-picture { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; --ink: #3d4451; --soft: #5a6372;
  --bar: #0072b2; }
@media (prefers-color-scheme: dark) { .steps-picture { --ink: #b4bcc8; --soft: #9aa4b2; --bar: #62b5ea; } }
.steps-picture text { fill: var(--ink); } .steps-picture .same { fill: var(--soft); }
.steps-picture rect { fill: var(--bar); }
"""
ROW, CHARACTER, BAR = 18, 7.3, 160  # pixels
LONGEST = 64  # characters of a column of the picture


def body(table: "TraceTable") -> str:
    """Sizes, the table with repeated blocks told once, and what the attention scores cost."""
    facts = {"call": table.call, "parameters": f"{table.parameters:,}"}
    facts |= {name: f"{size:,}" for name, size in table.sizes.items()}
    entries = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    header = (
        "<tr><th>module</th><th>operation</th><th>axes</th><th>shape</th><th>dtype</th><th class='number'>bytes</th>"
        "<th class='number'>parameters</th><th>called at</th></tr>"
    )
    rows = "\n".join(_row(entry) for entry in folded(table.steps))
    return (
        f"<dl>{entries}</dl>\n<h2>Steps</h2>\n"
        f'<div class="steps" tabindex="0" role="region" aria-label="Steps"><table><thead>{header}</thead>'
        f"<tbody>{rows}</tbody></table></div>\n"
        f"<h2>Attention scores</h2>\n<p>{text(table.score_sentence)}</p>"
    )


def _row(entry: "TraceStep | Repeats") -> str:
    if isinstance(entry, Repeats):
        return f'<tr class="same"><td colspan="8">{text(entry.sentence)}</td></tr>'
    position = f"{entry.file}:{entry.line}" if entry.file else ""
    size = in_bytes(entry.bytes) if entry.bytes else "view"
    parameters = f"{entry.parameters:,}" if entry.parameters else ""
    axes, shape = ", ".join(entry.axes), " x ".join(map(str, entry.shape))
    return (
        f"<tr><td>{text(entry.module or MODEL)}</td><td>{text(entry.operation)}</td>"
        f'<td class="axes">{text(axes)}</td><td class="axes">{text(shape)}</td>'
        f'<td>{text(entry.dtype)}</td><td class="number">{size}</td><td class="number">{parameters}</td>'
        f'<td title="{text(position)}">{text(_short(position))}</td></tr>'
    )


def _short(position: str) -> str:
    return position.replace("\\", "/").rpartition("/")[2]


def picture(table: "TraceTable") -> str:
    """A row for each step, and a bar for the memory that it writes, as one `<svg>` that stands alone."""
    entries = list(folded(table.steps))
    lines = [_texts(entry) for entry in entries]
    widths = [min(LONGEST, max((len(line[column]) for line in lines), default=0)) for column in range(3)]
    starts = [8 + CHARACTER * (sum(widths[:column]) + 2 * column) for column in range(4)]
    most = max([1, *(step.bytes for step in table.steps)])
    drawing = []
    for index, (entry, line) in enumerate(zip(entries, lines, strict=True)):
        y = ROW * (index + 1)
        if isinstance(entry, Repeats):
            drawing.append(f'<text class="same" x="8" y="{y}">{text(entry.sentence)}</text>')
            continue
        for start, cell in zip(starts, line, strict=False):
            drawing.append(f'<text x="{start:.1f}" y="{y}">{text(_end(cell))}</text>')
        if entry.bytes:
            width = max(1.0, BAR * entry.bytes / most)
            drawing.append(f'<rect x="{starts[3]:.1f}" y="{y - 9}" width="{width:.1f}" height="10"/>')
            label = starts[3] + width + 6
            drawing.append(f'<text class="same" x="{label:.1f}" y="{y}">{in_bytes(entry.bytes)}</text>')
    width, height = starts[3] + BAR + 90, ROW * (len(entries) + 1)
    return (
        f'<svg class="steps-picture" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-labelledby="steps-title steps-words"><title id="steps-title">{text(table.title)}</title>'
        f'<desc id="steps-words">{text(table.verdict)}</desc><style>{PICTURE_STYLE}</style>{"".join(drawing)}</svg>'
    )


def _texts(entry: "TraceStep | Repeats") -> tuple[str, str, str]:
    if isinstance(entry, Repeats):
        return "", "", ""
    return entry.module or MODEL, entry.operation, f"({', '.join(entry.axes)})"


def _end(cell: str) -> str:
    return cell if len(cell) <= LONGEST else "…" + cell[1 - LONGEST :]
