"""Attention as pictures: a wall of small maps, and one large one with its tokens."""

from typing import TYPE_CHECKING

from clearhead.inspection.heat import HATCH, forbidden, legend, paths, shrunk, svg
from clearhead.inspection.labels import visible
from clearhead.pages import text
from clearhead.wording import counted

if TYPE_CHECKING:
    from clearhead.inspection.attention.view import AttentionView

MAX_TOKENS = 128  # of a picture: more cannot be told apart
MAX_NUMBERS = 1_000_000  # of all heads on a page, whose data has 8/3 bytes for each
THUMBNAIL, GAP = 72, 14  # pixels of a small map and between two
LABEL = 14  # characters
CHARACTER = 7.2  # pixels
TOP = 26


def pictured(view: "AttentionView") -> tuple[int, int]:
    """How many queries and keys the pictures show: the first ones, of a long text not all."""
    layers, heads, queries, keys = view.weights.shape
    most = min(MAX_TOKENS, int((MAX_NUMBERS / (layers * heads)) ** 0.5))
    return min(queries, most), min(keys, most)


def cut(view: "AttentionView") -> str:
    """A sentence where the pictures leave tokens out."""
    shown, sizes = pictured(view), view.weights.shape[2:]
    if shown == sizes:
        return ""
    if view.kind == "cross":
        return (
            f"The first {counted(shown[0], 'target token')} of {sizes[0]} and "
            f"{counted(shown[1], 'source token')} of {sizes[1]} are shown. "
        )
    return f"The first {shown[0]} of {sizes[0]} tokens are shown. "


def overview(view: "AttentionView") -> str:
    """Every head as a small map: layers from top to bottom, heads from left to right."""
    layers, heads = view.weights.shape[:2]
    rows, columns = pictured(view)
    step, left = THUMBNAIL + GAP, 64
    drawing = []
    for head in range(heads):
        drawing.append(f'<text x="{left + head * step + THUMBNAIL / 2}" y="18" text-anchor="middle">head {head}</text>')
    for layer in range(layers):
        y = TOP + layer * step
        drawing.append(f'<text x="{left - 10}" y="{y + THUMBNAIL / 2 + 4}" text-anchor="end">layer {layer}</text>')
        for head in range(heads):
            small = shrunk(view.weights[layer, head, :rows, :columns], 24)
            scale = f"scale({THUMBNAIL / small.shape[1]:.4f},{THUMBNAIL / small.shape[0]:.4f})"
            drawing.append(
                f'<g transform="translate({left + head * step},{y})"><title>{text(_words(view, layer, head))}</title>'
                f'<g class="cells" transform="{scale}">{paths(small, 10)}</g>'
                f'<path class="edge" d="M0,0h{THUMBNAIL}v{THUMBNAIL}h-{THUMBNAIL}z"/></g>'
            )
    bottom = TOP + layers * step + 4
    drawing.append(legend(left, bottom))
    width = max(left + heads * step, left + 380)
    return svg(width, bottom + 24, view.title, f"{cut(view)}{view.verdict}", "".join(drawing))


def _words(view: "AttentionView", layer: int, head: int) -> str:
    focus = view.heads[layer * view.weights.shape[1] + head]
    return f"layer {layer}, head {head}: {focus.sentence}"


def large(view: "AttentionView") -> str:
    """One head: a row for each token that attends, a column for each that is attended to."""
    rows, columns = pictured(view)
    cell = min(26.0, max(12.0, 680 / max(rows, columns)))
    size = min(12.0, cell - 2)
    labels = [visible(token, LABEL) for token in view.queries[:rows]]
    tops = [visible(token, LABEL) for token in view.keys[:columns]]
    scale = CHARACTER * size / 12
    left, top = 14 + scale * max(map(len, labels)), 16 + scale * 0.87 * max(map(len, tops))
    drawing = [f"<defs>{HATCH}</defs>", f'<g class="labels" font-size="{size:.1f}">']
    for index, label in enumerate(labels):
        y = top + (index + 0.5) * cell + size / 3
        drawing.append(
            f'<text data-row="{index}" x="{left - 7:.1f}" y="{y:.1f}" text-anchor="end">{text(label)}</text>'
        )
    for index, label in enumerate(tops):
        x = left + (index + 0.5) * cell + size / 3
        drawing.append(f'<text data-column="{index}" transform="translate({x:.1f},{top - 7:.1f}) rotate(-60)">')
        drawing.append(f"{text(label)}</text>")
    width, height = columns * cell, rows * cell
    drawing.append(
        f'</g><g transform="translate({left:.1f},{top:.1f})">{forbidden(view.allowed[:rows, :columns], cell)}'
        f'<g class="cells" transform="scale({cell:.4f})">{paths(view.matrix[:rows, :columns])}</g>'
        f'<path class="edge" d="M0,0h{width:.1f}v{height:.1f}h-{width:.1f}z"/>'
        f'<rect class="plane" width="{width:.1f}" height="{height:.1f}" fill="transparent"/></g>'
    )
    drawing.append(legend(left, top + height + 14))
    right = scale * 0.5 * max(map(len, tops)) + 8  # what the last label needs
    full = max(left + width + right, left + 380)
    return svg(full, top + height + 38, view.title, f"{cut(view)}{view.verdict}", "".join(drawing), kind="heat large")
