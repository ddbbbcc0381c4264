"""The lines of a column's arrows."""

from collections.abc import Mapping
from dataclasses import dataclass

from clearhead.inspection.architecture.geometry import (
    CARD,
    CIRCLE,
    FAN,
    GAP,
    GUTTER,
    HALF_COLUMN,
    HEADER,
    LANE,
    Box,
    PictureLayout,
    Route,
)
from clearhead.inspection.architecture.graph import ArchitectureGraph, Column, Edge


@dataclass(frozen=True)
class Router:
    """Draws the lines between boxes that stand already.

    Attributes:
        center: of the column.
        sign: 1, or -1 in a mirrored column.
        forks: residual sum -> where its bypass begins.
    """

    graph: ArchitectureGraph
    layout: PictureLayout
    column: Column
    center: float
    sign: int
    forks: Mapping[str, float]

    def route(self, edge: Edge) -> Route:
        """The line of an arrow."""
        nodes, boxes = self.graph.nodes, self.layout.boxes
        source, target = nodes[edge.source], nodes[edge.target]
        if target.card and target.card != target.name and source.card == target.card:
            return self.inside(edge)
        start = self.layout.absolute(self.graph, edge.source)
        end = self.layout.absolute(self.graph, edge.target)
        if edge.role == "residual":
            return self.bypass(start, end, self.forks[edge.target])
        if edge.role == "memory":
            return self.lane(start, end)
        if target.kind == "scores":
            return self.bias(start, end)
        if edge.target in self.column.beside:  # n-gram tables read the ids
            if self.column.beside[edge.target] in self.column.after:
                return self.far_below(start, end)
            x = end.center + self.sign * 30
            return _route((start.right if self.sign > 0 else start.x, start.middle), (x, start.middle), (x, end.y))
        if edge.source in self.column.beside:
            at = end.right if start.center > end.center else end.x
            edge_x = start.x if start.center > end.center else start.right
            return Route(((edge_x, start.middle), (at, end.middle)), ((edge_x + at) / 2, start.middle - 8))
        if self.column.parallel and abs(start.center - end.center) > 1:
            if boxes[edge.target].width == CIRCLE:
                side = end.x if start.center < end.center else end.right
                points = ((start.center, start.bottom), (start.center, end.middle), (side, end.middle))
                return Route(points, (start.center + 5, end.middle - 14))
            fork = self.forks[self.column.sublayers[0].add]
            return _route((start.center, start.bottom), (start.center, fork), (end.center, fork), (end.center, end.y))
        return _route((start.center, start.bottom), (end.center, end.y))

    def far_below(self, start: Box, end: Box) -> Route:
        """Past the block's frame, along the column's edge."""
        lane = self.center + self.sign * ((CARD + 46) if self.column.parallel else (HALF_COLUMN - 3))
        starts, ends = (start.right, end.right) if self.sign > 0 else (start.x, end.x)
        points = ((starts, start.middle), (lane, start.middle), (lane, end.middle), (ends, end.middle))
        return Route(points, (lane - self.sign * 9, end.y - 60), True)

    def inside(self, edge: Edge) -> Route:
        """Within a card, measured from its corner: straight down where that meets the target, else round a corner."""
        boxes, card = self.layout.boxes, self.graph.nodes[edge.target].card
        end = boxes[edge.target]
        if edge.source == card:
            x, y, fan = CARD / 2, 0, HEADER + 8
            if abs(x - end.center) < 1:
                return Route(((x, y), (x, end.y)), (x + 5, end.y - 8))
            return Route(((x, y), (x, fan), (end.center, fan), (end.center, end.y)), (end.center + 5, end.y - 8))
        start = boxes[edge.source]
        x = start.center
        if end.x + 6 <= x <= end.right - 6:
            if end.y - start.bottom > 2 * GAP:
                return Route(((x, start.bottom), (x, end.y)), (x + 9, (start.bottom + end.y) / 2), True)
            return _route((x, start.bottom), (x, end.y))
        middle = end.y - 10
        return _route((x, start.bottom), (x, middle), (end.center, middle), (end.center, end.y))

    def bypass(self, start: Box, end: Box, fork: float) -> Route:
        """Around a sublayer: from the fork into the lane beside it and back to the sum."""
        if self.column.parallel:
            return Route(
                ((start.center, start.bottom), (start.center, end.y)), (start.center + 9, (fork + end.y) / 2), True
            )
        lane = self.center - self.sign * LANE
        side = end.x if self.sign > 0 else end.right
        points = (
            (start.center, start.bottom),
            (start.center, fork),
            (lane, fork),
            (lane, end.middle),
            (side, end.middle),
        )
        return Route(points, (lane - self.sign * 9, (fork + end.middle) / 2), True)

    def lane(self, start: Box, end: Box) -> Route:
        """From the encoder's end, between the columns, into cross-attention from its side."""
        lane = self.center - HALF_COLUMN - GUTTER / 2
        low, turn = start.bottom + 16, end.y - FAN / 2 + 4
        points = (
            (start.center, start.bottom),
            (start.center, low),
            (lane, low),
            (lane, turn),
            (end.center, turn),
            (end.center, end.y),
        )
        return Route(points, (lane + 12, (low + turn) / 2), True)

    def bias(self, start: Box, end: Box) -> Route:
        """From a bias down a lane into the scores."""
        toward_left = self.sign < 0 or self.column.parallel
        lane = self.center - CARD - 34 if self.column.parallel else self.center + self.sign * LANE
        side = end.x if toward_left else end.right
        if self.column.parallel:
            points: tuple[tuple[float, float], ...] = (
                (start.center, start.bottom),
                (start.center, start.bottom + 6),
                (lane, start.bottom + 6),
                (lane, end.middle),
                (side, end.middle),
            )
        else:
            points = ((lane, start.bottom), (lane, end.middle), (side, end.middle))
        return Route(points, (lane + self.sign * 5, start.bottom + 70), True)


def _route(*points: tuple[float, float]) -> Route:
    """A line whose label stands at the right of its last stretch."""
    (_, top), (x, bottom) = points[-2:]
    return Route(points, (x + 5, (top + bottom) / 2 + 1))
