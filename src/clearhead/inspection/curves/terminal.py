"""A training curve drawn in plain text: braille dots, or ASCII where the terminal cannot show them."""

from clearhead.inspection.curves.curve import Curve, LossAxis, Point, smooth, ticks

# The bit of each dot in a braille cell (2 wide, 4 high), by row from the top, then column: Unicode U+2800.
BRAILLE_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
MARGIN = 8  # columns left of the axis, for the tick labels
Cells = list[list[str]]


class Canvas:
    """A grid of characters of 2 by 4 dots each, in which a point is a share of the width and of the height."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.bits = [[0] * width for _ in range(height)]

    def line(self, points: list[Point]) -> None:
        """Joins the points (x and y in 0..1, y upwards) with dots."""
        dots = [self._dot(x, y) for x, y in points]
        for (x0, y0), (x1, y1) in zip(dots, dots[1:] or dots, strict=False):
            n = max(abs(x1 - x0), abs(y1 - y0), 1)
            for i in range(n + 1):
                x, y = round(x0 + (x1 - x0) * i / n), round(y0 + (y1 - y0) * i / n)
                self.bits[y // 4][x // 2] |= BRAILLE_BITS[y % 4][x % 2]

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """The row and column of the character that holds the point."""
        dot_x, dot_y = self._dot(x, y)
        return dot_y // 4, dot_x // 2

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        """Counted from the left and from the top."""
        return round(x * (self.width * 2 - 1)), round((1 - y) * (self.height * 4 - 1))


def draw(curve: Curve, *, width: int = 80, height: int = 20, encoding: str = "utf-8") -> str:
    """The curve as `height` lines of at most `width` characters, without color.

    The training loss is a smoothed line; validation losses are marks; the floor is a labelled horizontal line.
    Characters outside ASCII are used only if `encoding` (of the stream that will show them) has them.
    """
    if not curve.train and not curve.validation:
        return "no losses to draw"
    width, height = max(width, 40), max(height, 8)
    fancy = _encodable("⣿●╌│└─┤", encoding)
    canvas = Canvas(width - MARGIN - 2, height - 4)
    axis, last = LossAxis(curve, below=0.04), curve.last_step

    def place(points: tuple[Point, ...]) -> list[Point]:
        return [(step / last, axis(loss)) for step, loss in points]

    canvas.line(place(smooth(curve.train)))
    cells = [[_glyph(bits, fancy) for bits in row] for row in canvas.bits]
    for x, y in place(curve.validation):
        row, column = canvas.cell(x, y)
        cells[row][column] = "●" if fancy else "o"
    if curve.floor is not None:
        _write_floor(cells, canvas.cell(0, axis(curve.floor))[0], curve.floor_label, fancy)
    lines = [f"   {axis.name}", *_with_loss_axis(cells, canvas, axis, fancy), *_step_axis(canvas, last, fancy)]
    lines.append(f"{_legend(curve, fancy):^{width}}")
    return "\n".join(line.rstrip() for line in lines)


def _encodable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _glyph(bits: int, fancy: bool) -> str:
    if not bits:
        return " "
    return chr(0x2800 + bits) if fancy else "."


def _write_floor(cells: Cells, row: int, floor: str, fancy: bool) -> None:
    """The floor's line behind the curve; its label at the left, where the curve is still high."""
    dash = "╌" if fancy else "-"
    cells[row] = [dash if cell == " " else cell for cell in cells[row]]
    label = f" {floor} "
    cells[row][2 : 2 + len(label)] = label


def _legend(curve: Curve, fancy: bool) -> str:
    entries = [
        ("⠤⠤" if fancy else "..", "training", curve.train),
        ("●" if fancy else "o", "validation", curve.validation),
    ]
    return "   ".join(["steps", *(f"{mark} {name}" for mark, name, points in entries if points)])


def _with_loss_axis(cells: Cells, canvas: Canvas, axis: LossAxis, fancy: bool) -> list[str]:
    labels = {}
    for tick in axis.ticks(max(3, len(cells) // 2)):
        labels[canvas.cell(0, axis(tick))[0]] = f"{tick:.6g}"
    edge, mark = ("│", "┤") if fancy else ("|", "+")
    return [
        f"{labels.get(row, ''):>{MARGIN}} {mark if row in labels else edge}{''.join(line)}"
        for row, line in enumerate(cells)
    ]


def _step_axis(canvas: Canvas, last: float, fancy: bool) -> list[str]:
    """The line of the axis, its numbers centred under their ticks."""
    line = ["─" if fancy else "-"] * canvas.width
    numbers = [" "] * (canvas.width + MARGIN + 2)
    for tick in ticks(0, last, max(2, canvas.width // 14), whole=True):
        column = canvas.cell(tick / last, 0)[1]
        line[column] = "┬" if fancy else "+"
        label = f"{tick:,.6g}"
        start = min(MARGIN + 2 + column - len(label) // 2, len(numbers) - len(label))
        numbers[start : start + len(label)] = label
    corner = "└" if fancy else "+"
    return [f"{'':{MARGIN}} {corner}{''.join(line)}", "".join(numbers)]
