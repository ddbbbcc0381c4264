"""A matrix of shares as an SVG picture: one hue, darker (or on a dark page brighter) for more."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.pages import text

Array = NDArray[Any]

LEVELS = 20  # shades of the hue
TICKS = (0.01, 0.1, 0.25, 0.5, 1.0)  # shares in the legend
SVG_STYLE = """
.heat { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; --map-ink: #3d4451; --map-heat: #08457e;
  --map-edge: #c9ced6; --map-none: #b9c0ca; --map-paper: #ffffff; }
@media (prefers-color-scheme: dark) { .heat { --map-ink: #b4bcc8; --map-heat: #8fd0ff; --map-edge: #3a414b;
  --map-none: #4a525d; --map-paper: #15181d; } }
.clearhead .heat { --map-ink: currentColor; --map-heat: #0072b2; --map-edge: #8886; --map-none: #8888;
  --map-paper: none; }
.heat text { fill: var(--map-ink); } .heat .cells { fill: var(--map-heat); shape-rendering: crispEdges; }
.heat .edge { fill: none; stroke: var(--map-edge); } .heat .no { stroke: var(--map-none); }
"""
# What the mask forbids is hatched, so that it differs from what is allowed and gets nothing.
HATCH = (
    '<pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="no" d="M0,0 v5" stroke-width="1.6"/></pattern>'
)


def levels_of(matrix: Array, levels: int = LEVELS) -> Array:
    """The shade of each share, from 0 to `levels`: by square roots, as most shares are small."""
    shades: Array = np.rint(np.sqrt(np.clip(matrix, 0, 1)) * levels).astype(np.int64)
    return shades


def paths(matrix: Array, levels: int = LEVELS) -> str:
    """A path for each shade, in which each cell is a unit square."""
    shades = levels_of(matrix, levels)
    runs: dict[int, list[str]] = {}
    for row, shade, start, length in _runs(shades):
        if shade:
            runs.setdefault(shade, []).append(f"M{start},{row}h{length}v1h-{length}z")
    return "".join(
        f'<path fill-opacity="{_short(shade / levels)}" d="{"".join(runs[shade])}"/>' for shade in sorted(runs)
    )


def forbidden(allowed: Array, cell: float) -> str:
    """The hatched part: what the mask forbids, in cells of this many pixels."""
    runs = (
        f"M{_short(start * cell)},{_short(row * cell)}h{_short(length * cell)}v{_short(cell)}h-{_short(length * cell)}z"
        for row, is_allowed, start, length in _runs(allowed.astype(np.int64))
        if not is_allowed
    )
    return f'<path class="forbidden" fill="url(#hatch)" d="{"".join(runs)}"/>'


def _runs(matrix: Array) -> list[tuple[int, int, int, int]]:
    """Neighbors in a row that are equal: row, value, first column, how many."""
    runs = []
    for row, values in enumerate(matrix):
        starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        runs += [(row, int(values[start]), start, end - start) for start, end in pairwise(starts)]
    return runs


def shrunk(matrix: Array, most: int) -> Array:
    """The matrix with at most so many rows and columns: each the mean of neighbors."""
    for axis in range(2):
        size = matrix.shape[axis]
        if size > most:
            starts = np.arange(most) * size // most
            counts = np.diff(np.append(starts, size)).reshape((-1, 1) if axis == 0 else (1, -1))
            matrix = np.add.reduceat(matrix, starts, axis=axis) / counts
    return matrix


def legend(x: float, y: float) -> str:
    """Which shade is which share, in pixels from the top left."""
    entries = []
    for tick in (0.0, *TICKS):
        opacity = _short(round(tick**0.5 * LEVELS) / LEVELS)
        entries.append(
            f'<g transform="translate({_short(x)},{_short(y)})"><g class="cells"><path fill-opacity="{opacity}" '
            f'd="M0,0h14v14h-14z"/></g><path class="edge" d="M.5,.5h13v13h-13z"/>'
            f'<text x="19" y="11.5">{tick:.0%}</text></g>'
        )
        x += 62
    return "".join(entries)


def svg(width: float, height: float, name: str, description: str, drawing: str, *, kind: str = "heat") -> str:
    """One `<svg>` element that stands alone."""
    return (
        f'<svg class="{kind}" xmlns="http://www.w3.org/2000/svg" width="{_short(width)}" height="{_short(height)}" '
        f'viewBox="0 0 {_short(width)} {_short(height)}" role="img" aria-label="{text(name)}">'
        f"<desc>{text(description)}</desc><style>{SVG_STYLE}</style>"
        f'<rect width="100%" height="100%" fill="var(--map-paper)"/>{drawing}</svg>'
    )


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
