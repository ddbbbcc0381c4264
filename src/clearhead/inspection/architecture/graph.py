"""The graph of a model, from its config: what computes, what flows between, the shape that each arrow carries.

Blocks that repeat are folded into the first. No torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from clearhead.config import ModelConfig

Axes = tuple[str, ...]  # symbols, such as ("B", "T", "D")

SYMBOLS = {  # what an arrow of this role carries
    "ids": "ids",
    "data": "x",
    "residual": "x",
    "query": "Q",
    "key": "K",
    "value": "V",
    "scores": "S",
    "weights": "A",
    "mixed": "O",
    "hidden": "h",
    "memory": "M",
    "positions": "P",
    "logits": "logits",
}


@dataclass(frozen=True)
class Node:
    """Something that computes.

    Attributes:
        name: unlike all others; the path of its module where it has its own.
        kind: what it computes, such as "norm".
        label: what its box says; `_` begins a subscript.
        about: its name in plain words.
        axes: of what it gives, as symbols.
        role: what it gives, a key of `SYMBOLS`.
        tensor: the path of the module that gives it in a forward pass, or a name of `record`; with `:input`, what that
            module gets. Empty where no module boundary shows it.
        module: the module whose parameters are its own; empty if it has none.
        card: the sublayer's part that it is in.
        count: in how many blocks it stands.
        flops: of one block, for one token.
        rate: of a dropout.
    """

    name: str
    kind: str
    label: str
    about: str
    axes: Axes
    role: str = "data"
    tensor: str = ""
    module: str = ""
    card: str = ""
    count: int = 1
    flops: int = 0
    rate: float = 0.0

    @property
    def dtype(self) -> str:
        """The type of what it gives."""
        return "int64" if self.role == "ids" else "float32"

    @property
    def itemsize(self) -> int:
        """Bytes of one number of what it gives."""
        return 8 if self.role == "ids" else 4


@dataclass(frozen=True)
class Edge:
    """An arrow: it carries what `source` gives."""

    source: str
    target: str
    role: str

    @property
    def name(self) -> str:
        """Unlike that of any other arrow of its graph."""
        return f"{self.source}>{self.target}"


@dataclass(frozen=True)
class Cell:
    """A node in a card's row, from one sixth of the width to another."""

    node: str
    start: int
    stop: int


Rows = tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class SublayerPlan:
    """A sublayer: the names of its norm, its part (the card, and what is in it by rows), its dropout and its sum."""

    norm: str
    card: str
    rows: Rows
    dropout: str
    add: str


@dataclass(frozen=True)
class Column:
    """What one stack stands in: nodes before it, its block (folded), nodes after it.

    Attributes:
        before, after: names in the order of the flow.
        beside: node -> the node at whose side it stands, whose output it is added to or which it biases.
        bias: the node whose output is added to the attention scores, if there is one.
    """

    title: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    stack: str = ""
    n_layers: int = 0
    sublayers: tuple[SublayerPlan, ...] = ()
    parallel: bool = False
    beside: Mapping[str, str] = field(default_factory=dict)
    bias: str = ""


@dataclass(frozen=True)
class ArchitectureGraph:
    """The whole model with all sizes: `sizes` are those of the axes' symbols."""

    config: ModelConfig
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    columns: tuple[Column, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The number behind each symbol: one text of block_size tokens."""
        config = self.config
        return {
            "B": 1,
            "T": config.block_size,
            "T_src": config.block_size,
            "D": config.d_model,
            "H": config.n_heads,
            "H_kv": config.n_kv_heads,
            "K": config.head_dim,
            "d_ff": config.d_ff,
            "V": config.vocab_size,
        }

    def shape(self, node: str, sizes: Mapping[str, int] | None = None) -> tuple[int, ...]:
        """What a node gives, in numbers."""
        sizes = self.sizes if sizes is None else sizes
        return tuple(sizes[axis] for axis in self.nodes[node].axes)

    def incoming(self, node: str) -> list[Edge]:
        """The arrows that end in a node."""
        return [edge for edge in self.edges if edge.target == node]

    def order(self) -> list[str]:
        """The nodes in an order in which every arrow points forward.

        Raises:
            ValueError: they go round in a circle.
        """
        ordered: dict[str, None] = {}
        waiting = list(self.nodes)
        while waiting:
            ready = [node for node in waiting if all(edge.source in ordered for edge in self.incoming(node))]
            if not ready:
                raise ValueError(f"these nodes wait for each other: {waiting}")
            ordered |= dict.fromkeys(ready)
            waiting = [node for node in waiting if node not in ordered]
        return list(ordered)
