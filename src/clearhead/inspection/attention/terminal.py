"""Attention on a terminal: a table of the heads, or a map of one in colors, in shades or in numbers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from clearhead.inspection.heat import TICKS
from clearhead.inspection.labels import columns, in_columns, visible

if TYPE_CHECKING:
    from clearhead.inspection.attention.view import AttentionView

Ink = Literal["color", "shades", "numbers"]
Line = tuple[tuple[str, str], ...]  # texts, each with its style

LABEL, HEIGHT = 14, 8  # columns of a row's label; lines of a column's
SHADES = " ░▒▓█"
NEVER = "·"  # what the mask forbids
LOW, HIGH = (16, 32, 50), (143, 208, 255)  # red, green, blue of nothing and of everything
BAR = 20
WIDTHS: dict[Ink, int] = {"color": 2, "shades": 2, "numbers": 4}  # of a cell; the number with a space before it


def head_table(view: "AttentionView") -> Iterator[Line]:
    """A line for each head: its entropy, and where it looks most."""
    yield (("layer  head  entropy  looks most at", "bold"),)
    for focus in view.heads:
        bar = f"{'▇' * round(focus.share * BAR):<{BAR}}"
        numbers = f"{focus.layer:>5}  {focus.head:>4}  {focus.entropy:>7.2f}  "
        yield (numbers, ""), (bar, "blue"), (f" {focus.share:>4.0%}  {focus.target}", "")


def heat_map(view: "AttentionView", ink: Ink, width: int | None) -> Iterator[Line]:
    """A row for each token that attends, a column for each that it attends to.

    Args:
        width: columns of the terminal, to which the map is cut; None for no limit.
    """
    matrix, allowed = view.matrix, view.allowed
    rows, n_keys = matrix.shape
    cell = WIDTHS[ink]
    gutter = min(LABEL, max(columns(visible(token)) for token in view.queries))
    shown = n_keys if width is None else max(1, min(n_keys, (width - gutter - 1) // cell))
    shown_rows = rows if view.kind == "cross" else min(rows, shown)
    yield from _header(view, shown, cell, gutter)
    for row in range(shown_rows):
        pieces = [(in_columns(visible(view.queries[row]), gutter, right=True) + " ", "")]
        pieces += [_cell(float(matrix[row, key]), bool(allowed[row, key]), ink) for key in range(shown)]
        yield tuple(pieces)
    yield ((" " * (gutter + 1), ""), *_legend(ink, bool(allowed.all())))
    if shown < n_keys:
        what = "source tokens" if view.kind == "cross" else "tokens"
        sentence = f"The first {shown} of {n_keys} {what} are shown; a wider terminal, --report or --csv has more."
        yield ((sentence, "yellow"),)


def _header(view: "AttentionView", shown: int, cell: int, gutter: int) -> Iterator[Line]:
    """The keys' labels, written downwards."""
    labels = [visible(token, HEIGHT) for token in view.keys[:shown]]
    height = max(map(len, labels))
    for line in range(height):
        signs = (label[line - (height - len(label)) :][:1] if line >= height - len(label) else "" for label in labels)
        indent = " " * (cell - 2)  # numbers are right-aligned
        yield ((" " * (gutter + 1) + "".join(indent + in_columns(sign, 2) for sign in signs), "dim"),)


def _cell(weight: float, is_allowed: bool, ink: Ink) -> tuple[str, str]:
    if ink == "numbers":
        return (f"{weight:>4.0%}"[:-1].rjust(4) if is_allowed else NEVER.rjust(4)), ""
    if not is_allowed:
        return f"{NEVER} ", "dim"
    if ink == "color":
        return "  ", f"on {color(weight)}"
    return 2 * SHADES[round(weight**0.5 * (len(SHADES) - 1))], ""


def color(share: float) -> str:
    """The color of a share from 0 to 1, by its square root, as #rrggbb."""
    root = min(max(share, 0.0), 1.0) ** 0.5
    return "#" + "".join(f"{round(low + (high - low) * root):02x}" for low, high in zip(LOW, HIGH, strict=True))


def _legend(ink: Ink, all_allowed: bool) -> Iterator[tuple[str, str]]:
    if ink == "numbers":
        yield "percent" + f"; {NEVER} where the mask forbids" * (not all_allowed), ""
        return
    for tick in (0.0, *TICKS):
        yield _cell(tick, True, ink)
        yield f" {tick:.0%}  ", "dim"
    if not all_allowed:
        yield f"{NEVER} masked", "dim"
