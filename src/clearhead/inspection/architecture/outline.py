"""The same content as a nested list: complete without the picture and without any script."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clearhead.inspection.architecture.drawing import TIMES
from clearhead.inspection.architecture.equations import equations
from clearhead.inspection.architecture.graph import SYMBOLS, ArchitectureGraph, Column, Node, SublayerPlan
from clearhead.inspection.architecture.marks import Places
from clearhead.inspection.architecture.mathml import equation
from clearhead.inspection.architecture.measures import Measures
from clearhead.inspection.architecture.numbers import described, size
from clearhead.inspection.architecture.sources import SourceLines, read_source, sources_of
from clearhead.models import LanguageModel
from clearhead.pages import text
from clearhead.wording import counted


@dataclass
class Outline:
    """Writes what is known of each node; collects the source code that is referred to."""

    graph: ArchitectureGraph
    measures: Mapping[str, Measures]
    model: LanguageModel
    places: Places = field(default_factory=dict)
    sources: list[SourceLines] = field(default_factory=list)

    def html(self, others: Sequence[tuple[ArchitectureGraph, Node]] = ()) -> str:
        """The nested list.

        Args:
            others: nodes of the sibling graph that this one does not have.
        """
        columns = "".join(self._column(column) for column in self.graph.columns)
        sibling = "".join(self._item(node, graph) for graph, node in others)
        if sibling:
            columns += (
                f"<li><p>Only in the other picture, with the norm before each sublayer</p><ul>{sibling}</ul></li>"
            )
        return f'<ul class="outline">{columns}</ul>'

    def source_html(self) -> str:
        """All source code that the list refers to."""
        return "".join(
            f'<details class="source" id="source-{number}"><summary><code>{text(source.name)}</code> '
            f"<span>{text(source.file)}, line {source.line}</span></summary>"
            f'<pre tabindex="0"><code>{text(source.code)}</code></pre></details>'
            for number, source in enumerate(self.sources)
        )

    def _column(self, column: Column) -> str:
        items = [self._item(self.graph.nodes[name]) + self._beside(column, name) for name in column.before]
        if column.sublayers:
            items.append(self._block(column))
        items += [self._item(self.graph.nodes[name]) + self._beside(column, name) for name in column.after]
        inner = "".join(items)
        return f"<li><p>{text(column.title)}</p><ul>{inner}</ul></li>" if column.title else inner

    def _beside(self, column: Column, chain: str) -> str:
        return "".join(self._item(self.graph.nodes[name]) for name, other in column.beside.items() if other == chain)

    def _block(self, column: Column) -> str:
        inner = "".join(self._sublayer(sublayer, column) for sublayer in column.sublayers)
        if column.parallel:
            inner += self._item(self.graph.nodes[column.sublayers[0].add])
        path = f"{column.stack}.blocks"
        nodes = [node for name, node in self.graph.nodes.items() if name.startswith(f"{path}.") and node.card != name]
        parameters = sum(self.measures[node.name].parameters for node in nodes)
        flops = sum(self.measures[node.name].flops for node in nodes)
        last = f"{path}.0" if column.n_layers == 1 else f"{path}.0 to {path}.{column.n_layers - 1}"
        block = self.model.get_submodule(f"{path}.0")
        code = self._references([read_source(type(block).forward)])
        side = "side by side, one sum" if column.parallel else "one after the other, each with its residual sum"
        about = (
            f'<div class="detail" data-detail="{text(path)}"><p class="name">Block {TIMES} {column.n_layers:,}</p>'
            f'<p class="path"><code>{text(last)}</code></p>{self._marks(path)}'
            f"<p>{text(counted(len(column.sublayers), 'sublayer'))}, {side}: {parameters:,} parameters, "
            f"{flops:,} FLOPs per token in all blocks.</p>{code}</div>"
        )
        return f"<li>{about}<ul>{inner}</ul></li>"

    def _sublayer(self, sublayer: SublayerPlan, column: Column) -> str:
        nodes = self.graph.nodes
        inside = "".join(self._item(nodes[cell.node]) for row in sublayer.rows for cell in row)
        card = f"<li>{self._detail(nodes[sublayer.card])}<ul>{inside}</ul></li>"
        norm = self._item(nodes[sublayer.norm])
        dropout = self._item(nodes[sublayer.dropout]) if sublayer.dropout else ""
        add = "" if column.parallel else self._item(nodes[sublayer.add])
        is_pre = self.graph.config.norm_position == "pre"
        return f"{norm}{card}{dropout}{add}" if is_pre else f"{card}{dropout}{add}{norm}"

    def _item(self, node: Node, graph: ArchitectureGraph | None = None) -> str:
        return f"<li>{self._detail(node, graph)}</li>"

    def _detail(self, node: Node, graph: ArchitectureGraph | None = None) -> str:
        """All that is known of a node; the page shows a copy of this beside the picture."""
        graph = graph or self.graph
        measures = self.measures[node.name]
        path = node.module or (node.card if node.card == node.name else "")
        where = f'<p class="path"><code>{text(path)}</code></p>' if path else ""
        lines = "".join(equation(line) for line in equations(graph, node))
        written = f'<div class="equations">{lines}</div>' if lines else ""
        facts = [f"{measures.parameters:,} parameters ({size(measures.n_bytes)})"] if measures.parameters else []
        facts += [f"{measures.flops:,} FLOPs per token"] if measures.flops else []
        times = f", in {counted(node.count, 'block')} together" if node.count > 1 and facts else ""
        costs = f"<p>{text(', '.join(facts))}{times}.</p>" if facts else ""
        verb = "Reads" if node.card == node.name else "Gives"
        shape = described(graph.sizes, node.axes)
        symbol = f'<b class="{node.role}">{text(SYMBOLS[node.role])}</b>'
        n_bytes = node.itemsize * math.prod(graph.shape(node.name))
        gives = f"<p>{verb} {symbol} <code>{text(shape)}</code> {node.dtype}, {size(n_bytes)}.</p>"
        code = self._references(sources_of(graph, self.model, node))
        return (
            f'<div class="detail" data-detail="{text(node.name)}"><p class="name">{text(node.about)}</p>'
            f"{where}{self._marks(node.name)}{written}{gives}{costs}{code}</div>"
        )

    def _marks(self, name: str) -> str:
        return "".join(mark.html() for mark in self.places.get(name, ()))

    def _references(self, sources: Sequence[SourceLines | None]) -> str:
        links = []
        for source in sources:
            if source is None:
                continue
            if source not in self.sources:
                self.sources.append(source)
            number = self.sources.index(source)
            links.append(f'<a href="#source-{number}">{text(source.name)}</a>')
        return f'<p class="code">Source: {", ".join(links)}</p>' if links else ""
