"""Probabilities as pictures: a bar of surprisal for each token, or the grid of the lens."""

from typing import TYPE_CHECKING

from clearhead.inspection.heat import svg
from clearhead.inspection.labels import columns, in_columns, visible
from clearhead.pages import text

if TYPE_CHECKING:
    from clearhead.inspection.prediction.prediction import Lens, LensCell, Prediction

MAX_BARS, MAX_COLUMNS = 96, 32
STEP, HEIGHT, LEFT = 24, 180, 48
LABEL = 14  # characters
WIDE, HIGH = 84, 34  # a cell of the lens, in pixels
FIT = 10  # columns of text in a cell


def bars(view: "Prediction") -> str:
    """The surprisal of each token, in bits."""
    known = [(token, position.bits) for token, position in view.colored if position and position.bits is not None]
    shown = known[:MAX_BARS]
    highest = max([4.0, *(bits for _, bits in shown)])
    bottom = 34 + HEIGHT
    drawing = ['<text x="12" y="18">surprisal in bits</text>']
    grid = range(0, int(highest) + 1, max(1, round(highest / 4)))
    width = LEFT + max(1, len(shown)) * STEP + 20
    for tick in grid:
        y = bottom - HEIGHT * tick / highest
        drawing.append(f'<path class="edge" d="M{LEFT},{y:.1f}H{width - 12}"/>')
        drawing.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>')
    for index, (token, bits) in enumerate(shown):
        x, height = LEFT + index * STEP + 4, HEIGHT * bits / highest
        label = text(visible(token, LABEL))
        drawing.append(
            f'<g><title>{label}: {bits:.2f} bits</title><g class="cells"><path d="M{x},{bottom - height:.1f}h{STEP - 8}'
            f'V{bottom}h-{STEP - 8}z"/></g><text text-anchor="end" transform="translate({x + STEP / 2},{bottom + 12}) '
            f'rotate(-60)">{label}</text></g>'
        )
    deep = 20 + 6.4 * max([1, *(columns(visible(token, LABEL)) for token, _ in shown)])
    cut = f"The first {MAX_BARS} tokens. " if len(known) > MAX_BARS else ""
    return svg(max(width, 220), bottom + deep, view.title, cut + view.verdict, "".join(drawing))


def grid(view: "Prediction", lens: "Lens") -> str:
    """A row for each layer, the last on top; in each cell the likeliest token, and the rank of the one that follows."""
    shown = view.positions[:MAX_COLUMNS]
    left, top = 100, 34
    drawing = []
    for index, position in enumerate(shown):
        label = text(in_columns(visible(position.token), FIT).rstrip())
        drawing.append(f'<text x="{left + index * WIDE + WIDE / 2}" y="20" text-anchor="middle">{label}</text>')
    for row, (layer, cells) in enumerate(reversed(list(enumerate(lens.rows)))):
        y = top + row * HIGH
        name = f"after block {layer - 1}" if layer else "input"
        drawing.append(f'<text x="{left - 10}" y="{y + HIGH / 2 + 4}" text-anchor="end">{name}</text>')
        drawing += [_cell(cell, left + index * WIDE, y) for index, cell in enumerate(cells[:MAX_COLUMNS])]
    cut = f"The first {MAX_COLUMNS} positions. " if len(view.positions) > MAX_COLUMNS else ""
    width, height = left + len(shown) * WIDE + 12, top + len(lens.rows) * HIGH + 12
    return svg(width, height, f"{view.title}, layer by layer", cut + view.verdict, "".join(drawing))


def _cell(cell: "LensCell", x: float, y: float) -> str:
    rank = "" if cell.rank is None else f"#{cell.rank:,}"
    box, label = f"M0,0h{WIDE}v{HIGH}h-{WIDE}z", text(in_columns(visible(cell.token), FIT).rstrip())
    return (
        f'<g transform="translate({x},{y})"><title>{cell.probability:.1%}</title>'
        f'<g class="cells"><path fill-opacity="{cell.probability * 0.5:.3f}" d="{box}"/></g>'
        f'<path class="edge" d="{box}"/>'
        f'<text x="{WIDE / 2}" y="15" text-anchor="middle">{label}</text>'
        f'<text x="{WIDE / 2}" y="28" font-size="9" text-anchor="middle">{rank}</text></g>'
    )
