"""The insides of a sublayer as nodes and arrows: attention and feed-forward, row by row."""

from dataclasses import dataclass, field

from clearhead.config import GATED, ModelConfig
from clearhead.inspection.architecture.graph import Cell, Edge, Node, Rows

FEEDFORWARD_NAMES = {
    "relu": "ReLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "silu": "SiLU",
    "relu2": "ReLU²",
    "swiglu": "SiLU",
    "geglu": "GELU (tanh)",
}
BIASED = {"alibi", "relative"}  # positions that are added to the scores


@dataclass
class Draft:
    """Nodes and arrows while a graph is being put together."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def add(self, node: Node, *sources: str) -> str:
        """Add a node and the arrows that lead to it; returns its name."""
        assert node.name not in self.nodes, node.name
        self.nodes[node.name] = node
        for source in sources:
            self.connect(source, node.name)
        return node.name

    def connect(self, source: str, target: str, role: str = "") -> None:
        """An arrow; its role is what `source` gives, if not another."""
        self.edges.append(Edge(source, target, role or self.nodes[source].role))


@dataclass(frozen=True)
class AttentionPlan:
    """Which attention: the path of its module, its axes of queries and keys, its memory, its bias, its blocks."""

    path: str
    n_layers: int
    queries: str = "T"
    memory: str = ""
    bias: str = ""

    @property
    def keys(self) -> str:
        """The axis of the keys."""
        return "T_src" if self.memory else self.queries


def draw_attention(draft: Draft, config: ModelConfig, site: AttentionPlan, source: str) -> tuple[str, Rows]:
    """Add an attention that reads `source`; returns its last node, and its rows."""
    path, flow = site.path, ("B", site.queries, "D")
    label = "Cross-attention" if site.memory else "Self-attention"
    draft.add(Node(path, "attention", label, label, flow, "data", f"{path}:input", "", path, site.n_layers), source)
    last, rows = _draw_projections(draft, config, site)
    mixed, below = _draw_mixing(draft, config, site, last)
    flops = 2 * config.d_model * config.n_heads * config.head_dim
    name, about = f"{path}.output", "Output projection"
    draft.add(Node(name, "output", "W_O", about, flow, "data", name, name, path, site.n_layers, flops), mixed)
    return name, (*rows, *below, (Cell(name, 0, 6),))


def _draw_projections(draft: Draft, config: ModelConfig, site: AttentionPlan) -> tuple[dict[str, str], Rows]:
    """Queries, keys and values as they meet; returns the last node of each, and the rows."""
    path, count = site.path, site.n_layers
    kv_axis = "H" if config.n_kv_heads == config.n_heads else "H_kv"
    heads = {"query": config.n_heads, "key": config.n_kv_heads, "value": config.n_kv_heads}
    axes = dict.fromkeys(heads, ("B", kv_axis, site.keys, "K")) | {"query": ("B", "H", site.queries, "K")}
    cells = {"query": (0, 2), "key": (2, 4), "value": (4, 6)}
    last: dict[str, str] = {}
    for name, number in heads.items():
        module, label, about = f"{path}.{name}", f"W_{name[0].upper()}", f"{name.title()} projection"
        tensor = f"{path}.v" if name == "value" else f"{path}.{name}_norm:input"
        flops = 2 * config.d_model * number * config.head_dim
        node = Node(module, "linear", label, about, axes[name], name, tensor, module, path, count, flops)
        last[name] = draft.add(node, site.memory if site.memory and name != "query" else path)
    rows = [tuple(Cell(last[name], *cells[name]) for name in heads)]
    turned = {"query": "queries", "key": "keys"}
    if config.qk_norm:
        for name, plural in turned.items():
            module, about = f"{path}.{name}_norm", f"Norm of the {plural}"
            node = Node(module, "norm", "RMSNorm", about, axes[name], name, module, module, path, count)
            last[name] = draft.add(node, last[name])
        rows.append(tuple(Cell(last[name], *cells[name]) for name in turned))
    if config.positions == "rope" and not site.memory:
        for name, plural in turned.items():
            tensor, about = f"{path}.{name[0]}", f"Rotation of the {plural}"
            node = Node(tensor, "rotate", "RoPE", about, axes[name], name, tensor, "", path, count)
            last[name] = draft.add(node, last[name])
        rows.append(tuple(Cell(last[name], *cells[name]) for name in turned))
    return last, tuple(rows)


def _draw_mixing(draft: Draft, config: ModelConfig, site: AttentionPlan, last: dict[str, str]) -> tuple[str, Rows]:
    """Scores, softmax, the average of the values."""
    path, count = site.path, site.n_layers
    attended = min(config.block_size, config.sliding_window or config.block_size)
    flops = 2 * config.n_heads * config.head_dim * attended
    square = ("B", "H", site.queries, site.keys)
    label = "Q Kᵀ / √d_k" if config.scale_attention else "Q Kᵀ"
    scores = draft.add(
        Node(f"{path}.scores", "scores", label, "Scores", square, "scores", f"{path}.scores", "", path, count, flops),
        last["query"],
        last["key"],
    )
    if site.bias:
        draft.connect(site.bias, scores)
    weights = draft.add(
        Node(
            f"{path}.attention",
            "softmax",
            "softmax",
            "Attention weights",
            square,
            "weights",
            f"{path}.attention",
            "",
            path,
            count,
        ),
        scores,
    )
    rows: list[tuple[Cell, ...]] = [(Cell(scores, 0, 4),), (Cell(weights, 0, 4),)]
    if rate := config.attention_dropout:
        about = "Dropout of attention weights"
        node = Node(
            f"{path}.dropout", "dropout", f"dropout {rate:g}", about, square, "weights", "", "", path, count, 0, rate
        )
        weights = draft.add(node, weights)
        rows.append((Cell(weights, 0, 4),))
    mixed = draft.add(
        Node(
            f"{path}.mixed",
            "mix",
            "A V",
            "Average of the values",
            ("B", "H", site.queries, "K"),
            "mixed",
            f"{path}.mixed",
            "",
            path,
            count,
            flops,
        ),
        weights,
        last["value"],
    )
    return mixed, (*rows, (Cell(mixed, 0, 6),))


def draw_feedforward(
    draft: Draft, config: ModelConfig, path: str, source: str, *, length: str, count: int
) -> tuple[str, Rows]:
    """Add a feed-forward that reads `source`; returns its last node, and its rows."""
    flops = 2 * config.d_model * config.d_ff
    hidden, outer = ("B", length, "d_ff"), ("B", length, "D")
    draft.add(
        Node(path, "feedforward", "Feed-forward", "Feed-forward", outer, "data", f"{path}:input", "", path, count),
        source,
    )

    def linear(name: str, label: str, about: str) -> str:
        module = f"{path}.{name}"
        return draft.add(
            Node(module, "linear", label, about, hidden, "hidden", module, module, path, count, flops), path
        )

    gated = config.feedforward in GATED
    names = [linear("gate", "W_gate", "Gate projection")] if gated else []
    names.append(linear("up", "W_1", "Up projection"))
    bend = FEEDFORWARD_NAMES[config.feedforward] + (" ⊙" if gated else "")
    about = "Activation, times the other half" if gated else "Activation"
    last = draft.add(
        Node(
            f"{path}.activation", "activation", bend, about, hidden, "hidden", f"{path}.dropout:input", "", path, count
        ),
        *names,
    )
    halves = ((0, 3), (3, 6)) if gated else ((0, 6),)
    rows: list[tuple[Cell, ...]] = [
        tuple(Cell(name, *span) for name, span in zip(names, halves, strict=True)),
        (Cell(last, 0, 6),),
    ]
    if rate := config.feedforward_dropout:
        name, about = f"{path}.dropout", "Dropout in the feed-forward"
        node = Node(name, "dropout", f"dropout {rate:g}", about, hidden, "hidden", name, "", path, count, 0, rate)
        last = draft.add(node, last)
        rows.append((Cell(last, 0, 6),))
    down = f"{path}.down"
    draft.add(Node(down, "output", "W_2", "Down projection", outer, "data", down, down, path, count, flops), last)
    return down, (*rows, (Cell(down, 0, 6),))
