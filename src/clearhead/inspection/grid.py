"""A table of numbers as an SVG picture: each number in its cell, which is the darker the larger the number is."""

from collections.abc import Sequence
from html import escape

from clearhead.pages import one_line

CELL, HEIGHT, TOP, CHARACTER, GAP = 78, 26, 60, 7.2, 10  # pixels; a cell is wider if a column's name needs it
STRONGEST = 0.55  # opacity of the largest number: the text on it stays readable, in light and in dark
STYLE = """
.grid { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; font-variant-numeric: tabular-nums;
  --ink: #1d2129; --edge: #e3e6ea; --above: #0072b2; --below: #c44e00; }
@media (prefers-color-scheme: dark) { .grid { --ink: #e6e9ee; --edge: #2c323b; --above: #62b5ea; --below: #ff9d5c; } }
.grid text { fill: var(--ink); } .grid rect { stroke: var(--edge); fill: none; }
.grid .above { fill: var(--above); } .grid .below { fill: var(--below); } .grid .title { font-weight: 600; }
"""

Cells = Sequence[Sequence[float | None]]


def grid(
    name: str, title: str, columns: Sequence[str], rows: Sequence[str], cells: Cells, *, largest: float | None = None
) -> str:
    """One `<svg>` element that stands alone. Numbers above 0 are blue, those below it orange; None is left out.

    Args:
        name: of the element, unlike those of the others on its page.
        title: text.
        columns, rows: their names, as text.
        cells: the numbers, row by row.
        largest: the number that has the darkest cell; the largest of all by default.
    """
    numbers = [abs(number) for row in cells for number in row if number is not None]
    most = largest or max(numbers, default=0) or 1.0
    left = GAP + CHARACTER * max(map(len, rows), default=0)
    cell = max([CELL, *(GAP + CHARACTER * len(column) for column in columns)])
    width, height = left + cell * len(columns) + GAP, TOP + HEIGHT * len(rows) + GAP
    drawing = [f'<text class="title" x="{GAP}" y="18">{_text(title)}</text>']
    for index, column in enumerate(columns):
        x = left + cell * (index + 0.5)
        drawing.append(f'<text x="{x:.1f}" y="{TOP - 8}" text-anchor="middle">{_text(column)}</text>')
    for index, (row, values) in enumerate(zip(rows, cells, strict=True)):
        y = TOP + HEIGHT * index
        drawing.append(f'<text x="{left - 8:.1f}" y="{y + 17}" text-anchor="end">{_text(row)}</text>')
        drawing += [
            _cell(left + cell * column, y, cell, value, most)
            for column, value in enumerate(values)
            if value is not None
        ]
    return (
        f'<svg class="grid" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" role="img" aria-labelledby="{name}-title"><title id="{name}-title">'
        f"{_text(title)}</title><style>{STYLE}</style>{''.join(drawing)}</svg>"
    )


def _cell(x: float, y: float, width: float, value: float, most: float) -> str:
    color = "below" if value < 0 else "above"
    opacity = STRONGEST * min(1.0, abs(value) / most)
    return (
        f'<rect class="{color}" x="{x:.1f}" y="{y}" width="{width:g}" height="{HEIGHT}" fill-opacity="{opacity:.3f}"/>'
        f'<text x="{x + width / 2:.1f}" y="{y + 17}" text-anchor="middle">{value:.3f}</text>'
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same numbers as an HTML table: the first cell of a row names it; None is an empty cell."""
    columns = "".join(f'<th scope="col">{_text(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{_text(str(row[0]))}</th>{"".join(f"<td>{_shown(value)}</td>" for value in row[1:])}</tr>'
        for row in rows
    )
    return f"<table><thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else _text(str(value))


def _text(value: str) -> str:
    return escape(one_line(value))
