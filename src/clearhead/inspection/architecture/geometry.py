"""Boxes and lines, in the units of the picture."""

from dataclasses import dataclass, field

from clearhead.inspection.architecture.graph import ArchitectureGraph

CARD, HALF_COLUMN, GUTTER = 296, 200, 44  # widths: of a card, of half a column, between columns
PAD, HEADER, FAN = 8, 28, 24  # in a card: beside its cells, its header, between header and first row
BOX, NODE, SMALL, CIRCLE = 36, 140, 24, 22  # heights of boxes and dropouts; width of nodes on the chain; sums
GAP, LANE = 24, 170  # between nodes; from a column's center to the lanes beside its cards
SIDE = 56  # from a column's center to the boxes beside it
FRAME, TITLE = 190, 30  # from a column's center to its block's frame; height of a column's title


@dataclass(frozen=True)
class Box:
    """A rectangle by its top left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def center(self) -> float:
        """Of its width."""
        return self.x + self.width / 2

    @property
    def middle(self) -> float:
        """Of its height."""
        return self.y + self.height / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    def moved(self, x: float, y: float) -> "Box":
        """The same box elsewhere."""
        return Box(self.x + x, self.y + y, self.width, self.height)


@dataclass(frozen=True)
class Route:
    """An arrow's line through its corners, and where its label stands; an upright one is read along its lane."""

    points: tuple[tuple[float, float], ...]
    label: tuple[float, float]
    upright: bool = False


@dataclass(frozen=True)
class BlockFrame:
    """The frame around a folded block."""

    stack: str
    n_layers: int
    box: Box
    mirrored: bool


@dataclass
class PictureLayout:
    """Everything that a picture needs. What is in a card is measured from the card's corner."""

    width: float = 0
    height: float = 0
    boxes: dict[str, Box] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
    frames: list[BlockFrame] = field(default_factory=list)
    titles: list[tuple[str, float, float]] = field(default_factory=list)

    def absolute(self, graph: ArchitectureGraph, name: str) -> Box:
        """A node's box in the whole picture."""
        card = graph.nodes[name].card
        box = self.boxes[name]
        return box if card in ("", name) else box.moved(self.boxes[card].x, self.boxes[card].y)


def path_of(points: tuple[tuple[float, float], ...], corner: float = 7) -> str:
    """The points as an SVG path with round corners; it ends a little before its last point, where the head stands."""
    commands = [f"M{_number(points[0][0])} {_number(points[0][1])}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        near, far = _toward(here, before, corner), _toward(here, after, corner)
        commands.append(f"L{near}Q{_number(here[0])} {_number(here[1])} {far}")
    return "".join(commands) + f"L{_toward(points[-1], points[-2], 5)}"


def _toward(start: tuple[float, float], end: tuple[float, float], distance: float) -> str:
    """The point that lies so far from `start` on the way to `end`."""
    length = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1e-9)
    share = min(distance / length, 0.5)
    return f"{_number(start[0] + share * (end[0] - start[0]))} {_number(start[1] + share * (end[1] - start[1]))}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
