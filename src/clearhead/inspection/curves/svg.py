"""Curves as SVG pictures: readable in light and dark, described in words for those who cannot see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from clearhead.inspection.curves.curve import Axis, Curve, LossAxis, Point, smooth, thin, ticks
from clearhead.pages import printable

WIDTH, HEIGHT, LOW_HEIGHT = 760, 380, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 26, 40, 48
MAX_POINTS = 600  # per line: more than the picture has columns for
MAX_MARKS = 200  # of validation losses: they overlap beyond

# Okabe and Ito's colors, told apart by everyone; the dark ones are lighter for contrast.
COLORS = (
    ("#0072b2", "#62b5ea"),
    ("#c44e00", "#ff9d5c"),
    ("#00795a", "#3fd1a2"),
    ("#a3478b", "#e08cc9"),
    ("#8a6d00", "#f0d24a"),
    ("#5a6372", "#aab3c0"),
)
STYLE = """
.curve { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; --ink: #3d4451; --grid: #e3e6ea;
  --train: #0072b2; --validation: #c44e00; --floor: #00795a; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { .curve { --ink: #b4bcc8; --grid: #2c323b;
  --train: #62b5ea; --validation: #ff9d5c; --floor: #3fd1a2; --paper: #15181d; } }
.curve text { fill: var(--ink); } .curve .number { font-variant-numeric: tabular-nums; }
.curve path { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.curve .grid { stroke: var(--grid); } .curve .axis { stroke: var(--ink); opacity: .55; }
.curve .raw { stroke: var(--train); opacity: .22; } .curve .train { stroke: var(--train); stroke-width: 2.2; }
.curve circle { fill: var(--paper); stroke: var(--validation); stroke-width: 2; }
.curve .floor { stroke: var(--floor); stroke-width: 1.6; stroke-dasharray: 6 5; }
.curve text.floor-label { fill: var(--floor); }
.clearhead .curve { --ink: currentColor; --grid: #8884; --train: #0072b2; --validation: #d55e00; --floor: #009e73;
  --paper: transparent; }
""" + "".join(
    f".curve .color{index} {{ stroke: {light}; stroke-width: 2; }}\n"
    f"@media (prefers-color-scheme: dark) {{ .curve .color{index} {{ stroke: {dark}; }} }}\n"
    for index, (light, dark) in enumerate(COLORS)
)


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Frame:
    """From (step, value) to a place in the picture, whose horizontal axis ends with `last`."""

    axis: Axis
    last: float
    height: int = HEIGHT

    def x(self, step: float) -> float:
        """Pixels from the left edge."""
        return LEFT + (WIDTH - LEFT - RIGHT) * step / self.last

    def y(self, value: float) -> float:
        """Pixels from the top edge."""
        return self.height - BOTTOM - (self.height - TOP - BOTTOM) * self.axis(value)

    def path(self, points: tuple[Point, ...], kind: str) -> str:
        """A line through the points."""
        if not points:
            return ""
        points = points * 2 if len(points) == 1 else points  # a line to itself is a dot
        places = " ".join(f"{self.x(step):.1f},{self.y(value):.1f}" for step, value in points)
        return f'<path class="{kind}" d="M{places}"/>'


def picture(curve: Curve, *, title: str = "Training curve") -> str:
    """The curve as one `<svg>` element that stands alone: a file of its own, or part of a page."""
    frame = Frame(LossAxis(curve, below=0.06, above=0.03), curve.last_step)
    drawing = [*_grid(frame), *_floor(frame, curve)]
    drawing.append(frame.path(thin(curve.train, MAX_POINTS), "raw"))
    drawing.append(frame.path(thin(smooth(curve.train), MAX_POINTS), "train"))
    marks = thin(curve.validation, MAX_MARKS)
    drawing += [f'<circle cx="{frame.x(s):.1f}" cy="{frame.y(v):.1f}" r="3.6"/>' for s, v in marks]
    drawing += _legend(curve)
    return _svg("curve", title, describe_curve(curve), HEIGHT, drawing)


def chart(
    name: str,
    title: str,
    unit: str,
    series: Sequence[Series],
    *,
    x_name: str = "steps",
    logarithmic: bool = False,
    height: int = LOW_HEIGHT,
) -> str:
    """Some lines in one `<svg>` element, each in its own color (`class="color0"` and so on); at least one has a point.

    Args:
        name: of the element, unlike those of the others on its page.
        title: what it shows, for those who cannot see it.
        unit: what the vertical axis measures.
    """
    values = [value for line in series for _, value in line.points]
    last = max([1.0, *(step for line in series for step, _ in line.points)])  # as for a curve, at least 1
    frame = Frame(Axis(min(values), max(values), unit, logarithmic=logarithmic, below=0.06, above=0.03), last, height)
    drawing = _grid(frame, x_name)
    for index, line in enumerate(series):
        drawing.append(frame.path(thin(line.points, MAX_POINTS), f"color{index % len(COLORS)}"))
    description = "; ".join(
        f"{printable(line.name)} goes from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}"
        for line in series
        if line.points
    )
    return _svg(name, title, f"{description}.", height, drawing)


def _svg(name: str, title: str, description: str, height: int, drawing: list[str]) -> str:
    return (
        f'<svg class="curve" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{name}-title {name}-words"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-words">{escape(description)}</desc><style>{STYLE}</style>{"".join(drawing)}</svg>'
    )


def describe_curve(curve: Curve) -> str:
    """The curve in one sentence."""
    clauses = []
    for name, points in (("training", smooth(curve.train)), ("validation", curve.validation)):
        if points:
            (_, first), (step, last) = points[0], points[-1]
            clauses.append(f"{name} loss goes from {first:.3f} to {last:.3f} nats per token in {step:,.6g} steps")
    if curve.floor is not None:
        clauses.append(f"the lowest possible loss is {curve.floor:.3f}")
    sentence = "; ".join(clauses) or "no losses were recorded"
    return sentence[0].upper() + sentence[1:] + "."


def _grid(frame: Frame, x_name: str = "steps") -> list[str]:
    lines = []
    for tick in frame.axis.ticks(frame.height // 48):
        y = f"{frame.y(tick):.1f}"
        lines.append(f'<path class="grid" d="M{LEFT},{y} H{WIDTH - RIGHT}"/>')
        lines.append(f'<text class="number" x="{LEFT - 10}" y="{y}" dy=".35em" text-anchor="end">{tick:,.6g}</text>')
    bottom = frame.height - BOTTOM
    for tick in ticks(0, frame.last, 6, whole=True):
        x = f"{frame.x(tick):.1f}"
        lines.append(f'<path class="axis" d="M{x},{bottom} v5"/>')
        lines.append(f'<text class="number" x="{x}" y="{bottom + 20}" text-anchor="middle">{tick:,.6g}</text>')
    lines.append(f'<path class="axis" d="M{LEFT},{bottom} H{WIDTH - RIGHT}"/>')
    lines.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{frame.height - 8}" text-anchor="middle">{x_name}</text>')
    lines.append(f'<text x="12" y="20">{frame.axis.name}</text>')
    return lines


def _floor(frame: Frame, curve: Curve) -> list[str]:
    if curve.floor is None:
        return []
    y = frame.y(curve.floor)
    label = f'<text class="floor-label" x="{LEFT + 8}" y="{y - 7:.1f}">{curve.floor_label}</text>'
    return [f'<path class="floor" d="M{LEFT},{y:.1f} H{WIDTH - RIGHT}"/>', label]


def _legend(curve: Curve) -> list[str]:
    """At the top right, where a falling curve is not."""
    x, entries = WIDTH - RIGHT, []
    marks = (
        ("validation", curve.validation, '<circle cx="-14" r="3.6"/>'),
        ("training", curve.train, '<path class="train" d="M-26,0 h18"/>'),
    )
    for name, points, mark in marks:
        if points:
            entries.append(f'<g transform="translate({x - 68},16)">{mark}<text y="4">{name}</text></g>')
            x -= 112
    return entries
