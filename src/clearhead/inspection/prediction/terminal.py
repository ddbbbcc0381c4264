"""Probabilities on a terminal: the text colored by surprisal, a table of the positions, the lens."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clearhead.inspection.attention.terminal import Ink, Line, color
from clearhead.inspection.labels import columns, in_columns, visible
from clearhead.inspection.prediction.page import MOST_BITS, TICKS, caption, percent, shade

if TYPE_CHECKING:
    from clearhead.inspection.prediction.prediction import Lens, PositionPrediction, Prediction

TOKEN, BAR, CELL = 14, 30, 10
BRIGHT = 0.5  # from here on a tile is bright, and its text dark


def lines_of(view: "Prediction", ink: Ink, width: int | None) -> Iterator[Line]:
    """All of it, cut to `width` columns of a terminal; None for no limit."""
    if ink == "color":
        yield from _colored_text(view)
    yield from _table(view, width)
    for position in view.positions:
        if position.following is None:
            yield (("", ""),)
            yield from _candidates(view, position)
    if view.lens is not None:
        yield (("", ""),)
        yield from _lens(view, view.lens, ink, width)


def _tile(label: str, share: float) -> tuple[str, str]:
    """A text on a background of this share."""
    return label, f"{'black' if share**0.5 > BRIGHT else 'white'} on {color(share)}"


def _colored_text(view: "Prediction") -> Iterator[Line]:
    pieces = []
    for token, position in view.colored:
        bits = None if position is None else position.bits
        pieces.append((visible(token), "") if bits is None else _tile(visible(token), shade(bits) ** 2))
    yield tuple(pieces)
    legend = [("surprisal in bits  ", "dim")]
    for bits in TICKS:
        legend += [_tile(f" {bits}{'+' * (bits == MOST_BITS)} ", shade(bits) ** 2), (" ", "")]
    yield tuple(legend)
    yield (("", ""),)


def _table(view: "Prediction", width: int | None) -> Iterator[Line]:
    yield (
        (
            f"{'':>4}  {'token':<{TOKEN}}  {'in the text':<{TOKEN}}  "
            "      p   bits   nats     rank  entropy  likeliest",
            "bold",
        ),
    )
    for index, position in enumerate(view.positions):
        line = f"{index:>4}  {in_columns(visible(position.token), TOKEN)}  "
        following = "" if position.following is None else visible(position.following)
        line += f"{in_columns(following, TOKEN)}  "
        if position.probability is None:
            line += f"{'':>30}  "
        else:
            line += f"{percent(position.probability):>7}  "
            line += f"{position.bits:>5.2f}  {position.nats:>5.2f}  {position.rank:>7,}  "
        line += f"{position.entropy:>7.2f}"
        for candidate in position.top:
            addition = f"  {visible(candidate.token, TOKEN)} {candidate.probability:.1%}"
            if width is not None and columns(line) + columns(addition) > width:
                break
            line += addition
        yield ((line, ""),)


def _candidates(view: "Prediction", position: "PositionPrediction") -> Iterator[Line]:
    preposition = "in place of" if view.objective == "masked" else "after"
    yield ((f"The likeliest tokens {preposition} “{visible(position.token, 24)}”:", "bold"),)
    for candidate in position.top:
        bar = f"{'▇' * round(candidate.probability * BAR):<{BAR}}"
        yield (
            (f"{in_columns(visible(candidate.token), TOKEN, right=True)}  ", ""),
            (bar, "blue"),
            (f" {candidate.probability:>6.1%}", ""),
        )


def _lens(view: "Prediction", lens: "Lens", ink: Ink, width: int | None) -> Iterator[Line]:
    gutter = len(f"after block {len(lens.rows) - 2}")
    count = len(view.positions)
    shown = count if width is None else max(1, min(count, (width - gutter) // (CELL + 1)))
    heads = "".join(f" {in_columns(visible(position.token), CELL)}" for position in view.positions[:shown])
    yield ((f"{'':{gutter}}{heads}", "bold"),)
    for layer, cells in reversed(list(enumerate(lens.rows))):
        name = f"after block {layer - 1}" if layer else "input"
        pieces = [(f"{name:<{gutter}}", "")]
        for cell in cells[:shown]:
            label = in_columns(visible(cell.token), CELL - 4) + f"{cell.probability:>4.0%}"
            pieces.append((" ", ""))
            pieces.append(_tile(label, cell.probability) if ink == "color" else (label, ""))
        yield tuple(pieces)
    if shown < count:
        sentence = f"The first {shown} of {count} positions are shown; a wider terminal, --report or --csv has more."
        yield ((sentence, "yellow"),)
    yield ((caption(lens), "dim"),)
