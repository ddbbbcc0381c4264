"""The gradient of each block at initialization: pre-norm beside post-norm."""

import math

from clearhead.inspection.architecture.probe import ROWS, GradientProbe
from clearhead.pages import text

WIDTH, HEIGHT, LEFT, BASE, TOP = 720, 240, 64, 190, 14


def gradient_section(probe: GradientProbe) -> str:
    """The section with the picture, and its numbers as a table."""
    series = probe.by_position
    return (
        "<h2>Gradients at initialization</h2>"
        f'<figure class="gradients">{_picture(probe)}<figcaption>{text(_caption(probe))}</figcaption></figure>'
        f"<details><summary>The numbers</summary>{_table(series)}</details>"
    )


def _caption(probe: GradientProbe) -> str:
    config = probe.config
    model = f"fresh model of this kind, changed to {probe.changed}," if probe.changed else "fresh model"
    return (
        f"Root mean square of the gradient of each block's matrices, measured on a {model} for {ROWS} "
        f"texts of {config.block_size:,} random tokens. {_reading(probe)}"
    )


def _reading(probe: GradientProbe) -> str:
    """What the bars say, from their numbers."""
    clauses = []
    for position, values in probe.by_position.items():
        first, last = values[0], values[-1]
        if len(values) < 2 or not min(first, last):
            continue
        ratio = last / first
        clauses.append(f"{position}-norm: the last block's is {ratio:.2g} times the first block's")
    return f"{'; '.join(clauses)[:1].upper()}{'; '.join(clauses)[1:]}." if clauses else ""


def _picture(probe: GradientProbe) -> str:
    """Points over a logarithmic axis: round ones for pre-norm, square ones for post-norm."""
    series = probe.by_position
    n_layers = len(next(iter(series.values())))
    positive = [value for values in series.values() for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    high = max(high, low + 1)
    elements = [f'<path class="axis" d="M{LEFT} {BASE}H{WIDTH}"/>']
    for exponent in range(low, high + 1):
        y = BASE - (exponent - low) / (high - low) * (BASE - TOP)
        elements.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH}"/>')
        elements.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">1e{exponent}</text>')
    slot = (WIDTH - LEFT) / n_layers
    for position, values in series.items():
        points = [
            (LEFT + (layer + 0.5) * slot, BASE - (math.log10(value) - low) / (high - low) * (BASE - TOP))
            for layer, value in enumerate(values)
            if value > 0
        ]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        elements.append(f'<path class="line {position}" d="M{line}"/>')
        elements += [_mark(position, x, y) for x, y in points]
    for layer in range(0, n_layers, max(1, n_layers // 12)):
        x = LEFT + (layer + 0.5) * slot
        elements.append(f'<text x="{x:.1f}" y="{BASE + 18}" text-anchor="middle">{layer}</text>')
    elements.append(f'<text x="{WIDTH}" y="{BASE + 40}" text-anchor="end">block</text>')
    for number, position in enumerate(series):
        x = LEFT + 8 + 120 * number
        elements.append(f"{_mark(position, x, BASE + 36)}<text x='{x + 12}' y='{BASE + 40}'>{position}-norm</text>")
    kinds = " and with ".join(f"{name}-norm" for name in series)
    label = f"The gradient of each block with {kinds}; the table has the numbers"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(elements)}</svg>'


def _mark(position: str, x: float, y: float) -> str:
    if position == "pre":
        return f'<circle class="pre" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    return f'<rect class="post" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'


def _table(series: dict[str, tuple[float, ...]]) -> str:
    head = "".join(f'<th scope="col">{position}-norm</th>' for position in series)
    rows = "".join(
        f'<tr><th scope="row">block {layer}</th>{"".join(f"<td>{value:.3e}</td>" for value in values)}</tr>'
        for layer, values in enumerate(zip(*series.values(), strict=True))
    )
    return f'<table><thead><tr><th scope="col">Block</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
