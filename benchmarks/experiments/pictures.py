"""Several training curves in one SVG picture, on the axes of the library's own picture of one curve."""

import math
from collections.abc import Mapping
from html import escape

from clearhead.inspection import Curve
from clearhead.inspection.curves.curve import LossAxis, Point, smooth, thin, ticks
from clearhead.inspection.curves.svg import BOTTOM, HEIGHT, LEFT, MAX_POINTS, RIGHT, STYLE, WIDTH, Frame

# Okabe and Ito's colors, told apart by everyone and dark enough for white, bright enough for black paper.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("none", "7 4")
LINE = 18  # pixels between two lines of the legend
HIGHEST = 1.3  # times the loss of a model that knows nothing; what is above is drawn there


def curves_picture(curves: Mapping[str, Curve], title: str, vocab_size: int) -> str:
    """The smoothed training losses of several trainings by name, as one `<svg>` element that stands alone."""
    cap = HIGHEST * math.log(vocab_size)
    lines = {name: _capped(smooth(curve.train), cap) for name, curve in curves.items()}
    whole = Curve(validation=tuple(point for points in lines.values() for point in points))
    frame = Frame(LossAxis(whole, below=0.06, above=0.03), whole.last_step)
    drawing = _axes(frame)
    for number, (name, points) in enumerate(lines.items()):
        style = f"stroke:{COLORS[number % len(COLORS)]};stroke-width:2;stroke-dasharray:{DASHES[number % len(DASHES)]}"
        drawing.append(f'<g style="{style}">{frame.path(thin(points, MAX_POINTS), "line")}</g>')
        y = HEIGHT + LINE * (number + 0.5)  # below, where no curve is
        drawing.append(
            f'<path style="{style}" d="M{LEFT},{y} h26"/><text x="{LEFT + 34}" y="{y + 4}">{escape(name)}</text>'
        )
    description = "; ".join(f"{name} ends at {points[-1][1]:.3f}" for name, points in lines.items() if points)
    height = HEIGHT + LINE * (len(lines) + 1)
    return (
        f'<svg class="curve" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="title words"><title id="title">{escape(title)}</title>'
        f'<desc id="words">{escape(description)}</desc>'
        f"<style>{STYLE}</style>{''.join(drawing)}</svg>"
    )


def _capped(points: tuple[Point, ...], cap: float) -> tuple[Point, ...]:
    return tuple((step, min(loss, cap)) for step, loss in points)


def _axes(frame: Frame) -> list[str]:
    drawing = [f'<text x="12" y="20">training {frame.axis.name}</text>']
    for tick in frame.axis.ticks(8):
        y = f"{frame.y(tick):.1f}"
        drawing.append(f'<path class="grid" d="M{LEFT},{y} H{WIDTH - RIGHT}"/>')
        drawing.append(f'<text class="number" x="{LEFT - 10}" y="{y}" dy=".35em" text-anchor="end">{tick:.6g}</text>')
    bottom = HEIGHT - BOTTOM
    for tick in ticks(0, frame.last, 6, whole=True):
        x = f"{frame.x(tick):.1f}"
        drawing.append(f'<path class="axis" d="M{x},{bottom} v5"/>')
        drawing.append(f'<text class="number" x="{x}" y="{bottom + 20}" text-anchor="middle">{tick:,.6g}</text>')
    drawing.append(f'<path class="axis" d="M{LEFT},{bottom} H{WIDTH - RIGHT}"/>')
    drawing.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">steps</text>')
    return drawing
