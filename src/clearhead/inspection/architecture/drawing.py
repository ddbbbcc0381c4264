"""The picture: one SVG element. Its script makes each box and each arrow a button, with names from `spoken_names`."""

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType

from clearhead.inspection.architecture.geometry import CARD, Box, PictureLayout, path_of
from clearhead.inspection.architecture.graph import SYMBOLS, ArchitectureGraph, Edge, Node
from clearhead.inspection.architecture.marks import Places, spoken
from clearhead.inspection.architecture.measures import Measures
from clearhead.inspection.architecture.numbers import described, size
from clearhead.pages import text

Variants = Mapping[
    str, tuple[ArchitectureGraph, PictureLayout]
]  # norm position -> the graph and its layout; this model's is first

ROUND = {"add", "plus"}
PILLS = {"input", "logits"}
TIMES = "\u00d7"


def draw(variants: Variants, title: str, places: Places = MappingProxyType({})) -> str:
    """The `<svg>` element with all variants, of which a class shows one.

    Args:
        title: what the picture shows, for those who cannot see it.
        places: the marks, by the names of their boxes.
    """
    drawing = _Drawing(variants, places)
    width = max(layout.width for _, layout in variants.values())
    height = max(layout.height for _, layout in variants.values())
    actual = next(iter(variants))
    return (
        f'<svg id="picture" class="picture" data-variant="{actual}" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" role="img" aria-label="{text(title)}">'
        '<defs><marker id="head" viewBox="0 0 8 8" refX="3" refY="4" markerWidth="11" '
        'markerHeight="11" markerUnits="userSpaceOnUse" orient="auto">'
        '<path d="M0 0L8 4L0 8Z" fill="context-stroke"/></marker></defs>'
        f"{drawing.titles()}{drawing.frames()}{drawing.outer_edges()}{drawing.nodes()}"
        f"{drawing.outer_edges(into_cards=True)}</svg>"
    )


def label(source: str) -> str:
    """A box's label; what follows `_` is a subscript."""
    base, _, below = source.partition("_")
    return text(base) + (f'<tspan class="sub" dy="3">{text(below)}</tspan>' if below else "")


def edge_text(graph: ArchitectureGraph, edge: Edge) -> str:
    """What an arrow carries, in a line: from, to, shape, type, bytes."""
    source, target = graph.nodes[edge.source], graph.nodes[edge.target]
    count = 1
    for length in graph.shape(edge.source):
        count *= length
    return (
        f"{SYMBOLS[edge.role]} from {source.about} to {target.about}: "
        f"{described(graph.sizes, source.axes)}, {source.dtype}, {size(count * source.itemsize)}"
    )


def spoken_names(variants: Variants, measures: Mapping[str, Measures], places: Places) -> dict[str, str]:
    """The name of each box and each arrow, for those who hear the picture, and what is said of it."""
    names: dict[str, str] = {}
    for graph, layout in variants.values():
        for name, node in graph.nodes.items():
            parameters = measures[name].parameters
            names[name] = node.about + (f", {parameters:,} parameters" if parameters else "")
        names |= {edge.name: edge_text(graph, edge) for edge in graph.edges}
        names |= {f"{frame.stack}.blocks": f"Block, {frame.n_layers:,} times" for frame in layout.frames}
    for name in places.keys() & names.keys():
        names[name] += spoken(places[name])
    return names


class _Drawing:
    """The elements of the picture."""

    def __init__(self, variants: Variants, places: Places) -> None:
        self.variants, self.places = variants, places
        # Sibling graphs share their nodes, but for the final norm.
        merged = list(chain.from_iterable(graph.nodes.items() for graph, _ in variants.values()))
        self.all_nodes: dict[str, Node] = dict(reversed(merged))
        self.graph, self.layout = next(iter(variants.values()))

    def titles(self) -> str:
        """The columns' headings."""
        return "".join(
            f'<text class="title" x="{x:g}" y="{y:g}">{text(title)}</text>' for title, x, y in self.layout.titles
        )

    def frames(self) -> str:
        """The folded blocks: cards behind the first say that there are more."""
        elements = []
        for frame in self.layout.frames:
            box = frame.box
            behind = "".join(
                f'<rect class="behind" x="{box.x + shift:g}" y="{box.y + shift:g}" width="{box.width:g}" '
                f'height="{box.height:g}" rx="14"/>'
                for shift in (10, 5)[-min(2, frame.n_layers - 1) :]
                if frame.n_layers > 1
            )
            name = f"{frame.stack}.blocks"
            x = box.x + 12 if frame.mirrored else box.right - 12 - 92
            elements.append(
                f'{behind}<rect class="frame" x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" '
                f'height="{box.height:g}" rx="14"/>'
                f'<g class="node block{self._marked(name)}" data-name="{text(name)}" '
                f'transform="translate({x:g} {box.y - 12:g})">'
                f'<rect width="92" height="24" rx="12"/><text x="46" y="12">Block {TIMES} {frame.n_layers:,}</text></g>'
            )
        return "".join(elements)

    def outer_edges(self, *, into_cards: bool = False) -> str:
        """The arrows of each variant that do not stay in a card; those that end deep in one are drawn over it."""
        groups = []
        for variant, (graph, layout) in self.variants.items():
            ends = {edge: graph.nodes[edge.target] for edge in graph.edges if not _is_inside(graph, edge)}
            chosen = [edge for edge, end in ends.items() if (end.card not in ("", end.name)) == into_cards]
            drawn = "".join(self.edge(graph, layout, edge) for edge in chosen)
            groups.append(f'<g class="edges" data-variant="{variant}">{drawn}</g>')
        return "".join(groups)

    def edge(self, graph: ArchitectureGraph, layout: PictureLayout, edge: Edge) -> str:
        """An arrow: a line, a wider one that is easy to hit, and its label."""
        route = layout.routes[edge.name]
        path = path_of(route.points)
        x, y = route.label
        turned = f' transform="rotate(-90 {x:g} {y:g})"' if route.upright else ""
        is_level = route.points[0][1] == route.points[-1][1]
        anchor = ' class="shape middle"' if route.upright or is_level else ' class="shape"'
        first = next(other for other in graph.edges if (other.source, other.role) == (edge.source, edge.role))
        shown = f"{SYMBOLS[edge.role]} ({', '.join(graph.nodes[edge.source].axes)})"
        caption = f'<text{anchor} x="{x:g}" y="{y:g}"{turned}>{text(shown)}</text>' if edge is first else ""
        return f'<g class="edge {edge.role}" data-name="{text(edge.name)}"><path class="line" d="{path}"/>{caption}</g>'

    def nodes(self) -> str:
        """Every node that stands by itself, and the cards."""
        elements = []
        for name, node in self.all_nodes.items():
            if node.card == name:
                elements.append(self.card(node))
            elif not node.card:
                elements.append(self.node(node, self._moves(name)))
        return "".join(elements)

    def _moves(self, name: str) -> str:
        """Where it stands in each variant; one in which it is missing hides it."""
        corners, missing = {}, ""
        for variant, (graph, layout) in self.variants.items():
            if name in graph.nodes:
                corners[variant] = layout.boxes[name]
            else:
                missing = f' data-missing="{variant}"'
        if len({(box.x, box.y) for box in corners.values()}) == 1 and not missing:
            box = next(iter(corners.values()))
            return f'transform="translate({box.x:g} {box.y:g})"'
        style = ";".join(f"--{variant}:translate({box.x:g}px,{box.y:g}px)" for variant, box in corners.items())
        return f'data-moves="" style="{style}"{missing}'

    def node(self, node: Node, where: str) -> str:
        """A box with its label, a bar for overlays and their number."""
        box = self._box(node)
        if node.kind in ROUND:
            shape = f'<circle cx="{box.width / 2:g}" cy="{box.height / 2:g}" r="{box.width / 2:g}"/>'
        else:
            radius = box.height / 2 if node.kind in PILLS or node.kind == "dropout" else 7
            shape = f'<rect width="{box.width:g}" height="{box.height:g}" rx="{radius:g}"/>'
        return (
            f'<g class="node {node.kind}{self._marked(node.name)}" data-name="{text(node.name)}" {where}>{shape}'
            f'<text class="label" x="{box.width / 2:g}" y="{box.height / 2:g}">{label(node.label)}</text></g>'
        )

    def _marked(self, name: str) -> str:
        return f" {self.places[name][0].status}" if name in self.places else ""

    def _box(self, node: Node) -> Box:
        return next(layout.boxes[node.name] for _, layout in self.variants.values() if node.name in layout.boxes)

    def card(self, node: Node) -> str:
        """A sublayer's part: its header is a button, and so is everything in it."""
        box = self._box(node)
        edges = [edge for edge in self.graph.edges if _is_inside(self.graph, edge, node.name)]
        inner = [other for other in self.graph.nodes.values() if other.card == node.name and other.name != node.name]
        nodes = "".join(
            self.node(other, f'transform="translate({corner.x:g} {corner.y:g})"')
            for other in inner
            if (corner := self.layout.boxes[other.name])
        )
        drawn = "".join(self.edge(self.graph, self.layout, edge) for edge in edges)
        return (
            f'<g class="card {node.kind}" {self._moves(node.name)}>'
            f'<rect class="body" width="{CARD}" height="{box.height:g}" rx="12"/>'
            f'<g class="node header{self._marked(node.name)}" data-name="{text(node.name)}">'
            '<rect x="6" y="5" width="120" height="24" rx="7"/>'
            f'<text class="label" x="14" y="17">{text(node.label)}</text></g>'
            f'<text class="aside" x="{CARD - 12}" y="17">{text(_aside(self.graph, node))}</text>'
            f"{drawn}{nodes}</g>"
        )


def _aside(graph: ArchitectureGraph, node: Node) -> str:
    """What a card's header says at its right."""
    config = graph.config
    if node.kind == "feedforward":
        return f"{config.d_model:,} → {config.d_ff:,} → {config.d_model:,}"
    kv = "" if config.n_kv_heads == config.n_heads else f", {config.n_kv_heads} KV"
    return f"{config.n_heads} heads{kv} of {config.head_dim}"


def _is_inside(graph: ArchitectureGraph, edge: Edge, card: str = "") -> bool:
    """Whether both of its ends are in one card, or in this one."""
    source, target = graph.nodes[edge.source], graph.nodes[edge.target]
    inside = bool(source.card) and source.card == target.card
    return inside and (not card or source.card == card)
