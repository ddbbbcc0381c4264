"""Where everything stands: boxes and arrows of a graph, in the units of its picture. No torch."""

from clearhead.inspection.architecture.geometry import (
    BOX,
    CARD,
    CIRCLE,
    FAN,
    FRAME,
    GAP,
    GUTTER,
    HALF_COLUMN,
    HEADER,
    NODE,
    PAD,
    SIDE,
    SMALL,
    TITLE,
    BlockFrame,
    Box,
    PictureLayout,
)
from clearhead.inspection.architecture.graph import ArchitectureGraph, Column, SublayerPlan
from clearhead.inspection.architecture.routes import Router


def lay_out(graph: ArchitectureGraph) -> PictureLayout:
    """The layout of a graph: a column per stack, the flow from top to bottom, an encoder at the left of its decoder."""
    layout = PictureLayout()
    x = 0.0
    for number, column in enumerate(graph.columns):
        half = CARD + 52 if column.parallel else HALF_COLUMN
        _ColumnLayout(graph, layout, column, x + half, mirrored=number > 0).place()
        layout.width = x + 2 * half
        x = layout.width + GUTTER
    layout.height = max(box.bottom for name in graph.nodes if (box := layout.absolute(graph, name))) + 12
    return layout


class _ColumnLayout:
    """Places one column, then its arrows. In a mirrored one, what stands at the left elsewhere is at the right."""

    def __init__(
        self, graph: ArchitectureGraph, layout: PictureLayout, column: Column, center: float, *, mirrored: bool
    ) -> None:
        self.graph, self.layout, self.column, self.center = graph, layout, column, center
        self.sign = -1 if mirrored else 1
        self.forks: dict[str, float] = {}  # residual sum -> where its bypass begins
        self.y = 8.0

    def place(self) -> None:
        """Everything from top to bottom, then the arrows."""
        column = self.column
        if column.title:
            self.layout.titles.append((column.title, self.center, self.y + 14))
            self.y += TITLE
        for name in column.before:
            self.put(name)
        for name, chain in column.beside.items():
            if chain in column.before:
                self.put_beside(name, chain)
        if column.sublayers:
            self.put_block()
        for name in column.after:
            self.put(name)
        for name, chain in column.beside.items():
            if chain in column.after:
                self.put_beside(name, chain)
        router = Router(self.graph, self.layout, column, self.center, self.sign, self.forks)
        for edge in self.graph.edges:
            if edge.target in self.layout.boxes and edge.name not in self.layout.routes:
                self.layout.routes[edge.name] = router.route(edge)

    def put(self, name: str, center: float | None = None) -> None:
        """The next node of the chain."""
        kind = self.graph.nodes[name].kind
        center = self.center if center is None else center
        width, height = {"add": (CIRCLE, CIRCLE), "plus": (CIRCLE, CIRCLE), "dropout": (104, SMALL)}.get(
            kind, (NODE, BOX)
        )
        self.layout.boxes[name] = Box(center - width / 2, self.y, width, height)
        self.y += height + GAP

    def put_beside(self, name: str, chain: str) -> None:
        """A box at the side of a node of the chain, away from the bypass; a bias has a row of its own below it."""
        is_bias, width = name == self.column.bias, 128
        y = self.layout.boxes[chain].middle - BOX / 2
        side = -1 if is_bias and self.column.parallel else self.sign
        if is_bias:
            y, self.y = self.y - GAP / 2, self.y + BOX - GAP / 2 + 12
        left = self.center + SIDE if side > 0 else self.center - SIDE - width
        self.layout.boxes[name] = Box(left, y, width, BOX)

    def put_block(self) -> None:
        """The folded block with its frame."""
        column = self.column
        top = self.y
        self.y += TITLE
        half = CARD + 40 if column.parallel else FRAME
        if column.parallel:
            self.put_parallel()
        else:
            for sublayer in column.sublayers:
                self.forks[sublayer.add] = self.y - GAP + 8
                for name in self.in_order(sublayer):
                    if name == sublayer.card:
                        self.put_card(sublayer, self.center)
                    elif name:
                        self.put(name)
        frame = Box(self.center - half, top, 2 * half, self.y - GAP + 14 - top)
        self.layout.frames.append(BlockFrame(column.stack, column.n_layers, frame, self.sign < 0))
        self.y += 26

    def in_order(self, sublayer: SublayerPlan) -> list[str]:
        """The nodes of a sublayer as its norm position has them."""
        rest = [sublayer.card, sublayer.dropout, sublayer.add]
        return [sublayer.norm, *rest] if self.graph.config.norm_position == "pre" else [*rest, sublayer.norm]

    def put_parallel(self) -> None:
        """Two sublayers side by side, and one sum."""
        top, lowest = self.y + 12, 0.0
        for number, sublayer in enumerate(self.column.sublayers):
            center = self.center + (2 * number - 1) * (CARD / 2 + 26)
            self.y = top
            self.put(sublayer.norm, center)
            self.put_card(sublayer, center)
            if sublayer.dropout:
                self.put(sublayer.dropout, center)
            lowest = max(lowest, self.y)
        self.y = lowest
        add = self.column.sublayers[0].add
        self.forks[add] = top - GAP + 8
        self.put(add)

    def put_card(self, sublayer: SublayerPlan, center: float) -> None:
        """A sublayer's part with everything in it."""
        unit, y = (CARD - 2 * PAD) / 6, float(HEADER + FAN)
        for row in sublayer.rows:
            height = 0
            for cell in row:
                kind = self.graph.nodes[cell.node].kind
                height = SMALL if kind == "dropout" else BOX
                left, right = PAD + cell.start * unit + 5, PAD + cell.stop * unit - 5
                if self.sign < 0:
                    left, right = CARD - right, CARD - left
                self.layout.boxes[cell.node] = Box(left, y, right - left, height)
            y += height + GAP
        height = int(y - GAP + 12)
        self.layout.boxes[sublayer.card] = Box(center - CARD / 2, self.y, CARD, height)
        self.y += height + GAP
