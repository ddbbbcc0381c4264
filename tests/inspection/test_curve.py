"""Curves: nothing is lost, nothing is invented, every size and every terminal gets a picture."""

import math
import random
import xml.etree.ElementTree as ET

import pytest

from clearhead.inspection import Curve, draw, picture, verdict
from clearhead.inspection.curves.curve import LossAxis, smooth, thin, ticks


def a_run(n: int, seed: int = 0, floor: float | None = 0.653) -> Curve:
    noise = random.Random(seed)
    losses = [0.7 + 3.4 * math.exp(-step / 40) for step in range(n)]
    train = tuple((float(step), loss + noise.gauss(0, 0.02)) for step, loss in enumerate(losses))
    return Curve(train, tuple((float(step), losses[step]) for step in range(0, n, 25)), floor)


def test_smoothing_keeps_a_straight_line_and_the_start() -> None:
    line = tuple((float(i), 5 - 0.01 * i) for i in range(400))
    smoothed = smooth(line, 0.1)  # 20 points to each side
    assert [step for step, _ in smoothed] == [step for step, _ in line]
    for (_, mean), (_, loss) in zip(smoothed[:-10], line[:-10], strict=True):
        assert mean == pytest.approx(loss)
    noisy = a_run(300).train
    assert smooth(noisy)[0] == pytest.approx(noisy[0])


def test_the_end_of_a_smoothed_curve_follows_no_single_point() -> None:
    points = tuple((float(i), 3.0) for i in range(499))
    _, last = smooth((*points, (499.0, 9.0)), 0.04)[-1]
    assert last == pytest.approx(3 + 6 / 6)  # one of the last 6 points


def test_smoothing_takes_noise_away() -> None:
    noise = random.Random(1)
    points = tuple((float(i), noise.gauss(0, 1)) for i in range(2000))
    spread = sum(loss**2 for _, loss in smooth(points, 0.05)) / 2000
    assert spread == pytest.approx(1 / 101, rel=0.5)  # a mean of 101 numbers has a 101st of their variance


@pytest.mark.parametrize("n", [1, 2, 10, 11, 5000])
def test_thinning_keeps_order_and_ends(n: int) -> None:
    points = tuple((float(i), 0.0) for i in range(n))
    thinned = thin(points, 10)
    assert len(thinned) == min(n, 10)
    assert thinned[0] == points[0]
    assert thinned[-1] == points[-1]
    assert list(thinned) == sorted(set(thinned))


def test_ticks_are_round_and_inside() -> None:
    draw_from = random.Random(2)
    for _ in range(500):
        low = draw_from.uniform(-5, 5)
        high = low + 10 ** draw_from.uniform(-3, 4)
        about = draw_from.randint(1, 12)
        marks = ticks(low, high, about)
        assert len(marks) <= about + 1
        assert all(low - 1e-9 * abs(high) <= mark <= high + 1e-9 * abs(high) for mark in marks)
        assert all(len(f"{mark:.6g}".strip("-0.").rstrip("0")) <= 6 for mark in marks)
        assert all(float(mark).is_integer() for mark in ticks(0, max(high, 1), about, whole=True))


@pytest.mark.parametrize(("low", "high"), [(0.65, 4.2), (1.4, 1.6), (0.001, 3.0), (2.0, 2.0), (9.0, 11.0)])
def test_the_loss_axis_rises_and_has_ticks(low: float, high: float) -> None:
    axis = LossAxis(Curve(validation=((0, high), (1, low))), below=0.05)
    marks = axis.ticks(8)
    assert 2 <= len(marks) <= 9
    heights = [axis(mark) for mark in marks]
    assert heights == sorted(heights)
    assert all(0 <= height <= 1 for height in heights)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252", "latin-1", "no such encoding"])
@pytest.mark.parametrize(("width", "height"), [(40, 8), (80, 20), (200, 50), (1, 1)])
def test_the_drawing_fits_its_size_and_its_terminal(width: int, height: int, encoding: str) -> None:
    drawn = draw(a_run(200), width=width, height=height, encoding=encoding)
    lines = drawn.split("\n")
    assert len(lines) == max(height, 8)
    assert max(map(len, lines)) <= max(width, 40)
    assert drawn.isascii() == (encoding != "utf-8")
    assert "floor 0.653 (exact)" in drawn
    assert "steps" in drawn


def test_the_drawing_falls_from_left_to_right() -> None:
    rows = [line[10:] for line in draw(Curve(((0, 4.0), (100, 1.0))), width=80, height=24).split("\n")[1:-3]]
    places = [column for row in rows for column, character in enumerate(row) if character != " "]
    assert places == sorted(places)
    assert len({len(row.rstrip()) for row in rows}) > 10
    assert rows[0][0] != " "
    assert rows[-1][-1] != " "


def test_every_validation_point_has_its_mark() -> None:
    curve = Curve(validation=tuple((float(step), 4.0 - step) for step in range(4)))
    marks = "\n".join(draw(curve, width=80, height=20, encoding="ascii").split("\n")[1:-3])
    assert marks.count("o") == 4


@pytest.mark.sampled
@pytest.mark.parametrize("height", range(8, 30))
def test_a_mark_on_the_line_is_drawn_on_the_line(height: int) -> None:
    line = tuple((float(step), 4.0 * 0.98**step) for step in range(101))
    marked = draw(Curve(line, line[::10]), height=height).split("\n")[1:-3]
    plain = draw(Curve(line), height=height).split("\n")[1:-3]
    places = [(row, column) for row, text in enumerate(marked) for column, mark in enumerate(text) if mark == "●"]
    assert places
    assert all(plain[row][column] > "\u2800" for row, column in places)


@pytest.mark.parametrize(
    "curve",
    [
        Curve(),
        Curve(((0, 1.0),)),
        Curve(validation=((0, 0.0),)),
        Curve(((0, 2.0), (1, 2.0)), floor=2.0),
        Curve(((0, math.nan), (1, math.inf), (2, 3.0))),
        Curve(((0, 1e30), (1, 0.0))),
        Curve(((0, -1.0), (1, 5.0)), floor=0.0),
    ],
)
def test_odd_curves_are_drawn_too(curve: Curve) -> None:
    drawn = draw(curve) + picture(curve)
    assert "nan" not in drawn.lower()
    assert "inf" not in drawn.lower()


@pytest.mark.parametrize("curve", [a_run(300), a_run(5000, floor=None), Curve()])
def test_the_picture_is_well_formed_and_described(curve: Curve) -> None:
    svg = ET.fromstring(picture(curve, title="a <run> & more"))
    names = {child.tag.split("}")[1]: child.text for child in svg}
    assert names["title"] == "a <run> & more"
    assert names["desc"]
    circles = [element for element in svg.iter() if element.tag.endswith("circle")]
    assert len(circles) == len(curve.validation) + bool(curve.validation)  # one more in the legend
    assert len(picture(curve)) < 60_000  # however long the run
    assert ('class="floor-label"' in picture(curve)) == (curve.floor is not None)


def test_the_verdict_measures_from_the_floor_or_from_no_model() -> None:
    known = verdict(Curve(validation=((0, 4.0), (9, 0.7), (10, 0.72)), floor=0.65), 65)
    assert known.startswith("0.050 nats per token above what is possible")
    assert "bits per byte" not in known
    in_both = verdict(Curve(validation=((9, 2 * math.log(2)),), floor=math.log(2), bytes_per_token=4.0), 65)
    assert "1.386 (0.500 bits per byte)" in in_both
    assert "0.693 (0.250 bits per byte)" in in_both
    assert "floor 0.693, 0.250 bits per byte (exact)" in picture(
        Curve(((0, 2.0), (1, 1.0)), floor=math.log(2), bytes_per_token=4.0)
    )
    lucky = verdict(Curve(validation=((0, 0.64),), floor=0.65), 65)
    assert lucky.startswith("0.010 nats per token below the corpus's entropy")
    unknown = verdict(Curve(validation=((0, 4.2), (10, 1.5))), 65)
    assert f"ln 65 = {math.log(65):.3f}" in unknown
    assert "1.500" in unknown
    assert f"{math.log(65):.3f}" in verdict(Curve(), 65)
