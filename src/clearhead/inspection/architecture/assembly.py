"""From a config to its graph: embedding, stacks and head of every architecture."""

from dataclasses import replace

from clearhead.config import ModelConfig
from clearhead.inspection.architecture.graph import ArchitectureGraph, Column, Node, SublayerPlan
from clearhead.inspection.architecture.parts import (
    BIASED,
    AttentionPlan,
    Draft,
    draw_attention,
    draw_feedforward,
)

ADDED = {"learned", "sinusoidal"}  # positions that are added to the embedding
NORM_NAMES = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "rmsnorm_plus_one": "RMSNorm (1 + w)"}
POSITION_NAMES = {
    "learned": "Learned positions",
    "sinusoidal": "Sinusoids",
    "alibi": "ALiBi",
    "relative": "Relative bias",
}


def build_graph(config: ModelConfig) -> ArchitectureGraph:
    """The graph of the model that this config describes."""
    draft = Draft()
    if config.architecture == "bigram":
        columns = [_bigram(draft)]
    elif config.architecture == "encoder_decoder":
        encoder, memory = _column(draft, config, "encoder", side="source_")
        decoder, last = _column(draft, config, "decoder", memory=memory)
        columns = [encoder, _with_head(draft, config, decoder, last)]
    else:
        column, last = _column(draft, config, "stack")
        columns = [_with_head(draft, config, column, last)]
    return ArchitectureGraph(config, draft.nodes, tuple(draft.edges), tuple(columns))


def _bigram(draft: Draft) -> Column:
    ids = draft.add(Node("ids", "input", "Token ids", "Token ids", ("B", "T"), "ids", "embedding:input"))
    about = "Table of the next token's logits"
    table = Node("embedding", "bigram", "Table V x V", about, ("B", "T", "V"), "logits", "embedding", "embedding")
    logits = Node("logits", "logits", "Logits", "Logits of the next token", ("B", "T", "V"), "logits", "output")
    last = draft.add(table, ids)
    return Column("", (ids, last, draft.add(logits, last)), ())


def _column(draft: Draft, config: ModelConfig, stack: str, *, side: str = "", memory: str = "") -> tuple[Column, str]:
    """A stack with what leads to it, and its last node."""
    length = "T_src" if side else "T"
    n_layers = config.n_encoder_layers if side else config.n_layers
    before, beside, last = _before(draft, config, stack, side, length)
    bias = ""
    if config.positions in BIASED:
        name = f"{side}positions"
        learned = name if config.positions == "relative" else ""
        label = POSITION_NAMES[config.positions]
        axes = ("H", length, length)
        bias = draft.add(Node(name, config.positions, label, label, axes, "positions", f"{stack}:bias", learned))
        beside[bias] = last
    sublayers: list[SublayerPlan] = []
    block = f"{stack}.blocks.0"
    start = last
    for kind in ("self_attention", *(("cross_attention",) if memory else ()), "feedforward"):
        source = start if config.parallel_residual else last
        site = AttentionPlan(
            f"{block}.{kind}.part",
            n_layers,
            length,
            memory if kind == "cross_attention" else "",
            bias if kind == "self_attention" else "",
        )
        sublayer, last = _sublayer(draft, config, site, source)
        sublayers.append(sublayer)
    if config.parallel_residual:
        sublayers, last = _join(draft, sublayers, start, block, n_layers)
    after: list[str] = []
    if config.norm_position == "pre":
        name = f"{stack}.norm"
        norm = Node(name, "norm", NORM_NAMES[config.norm], "Final norm", ("B", length, "D"), "data", name, name)
        last = draft.add(norm, last)
        after.append(last)
    if side:
        draft.nodes[last] = replace(draft.nodes[last], role="memory")
    title = {"encoder": "Encoder", "decoder": "Decoder"}.get(stack, "")
    column = Column(
        title, tuple(before), tuple(after), stack, n_layers, tuple(sublayers), config.parallel_residual, beside, bias
    )
    return column, last


def _before(
    draft: Draft, config: ModelConfig, stack: str, side: str, length: str
) -> tuple[list[str], dict[str, str], str]:
    """From ids to the residual stream: the chain, what stands beside it, and its last node."""
    flow = ("B", length, "D")
    own = not side or config.source_vocab_size is not None
    table = f"{side}embedding"
    label = {True: "Source ids", False: "Target ids" if stack == "decoder" else "Token ids"}[bool(side)]
    chain = [
        draft.add(Node(f"{side}ids", "input", label, label, ("B", length), "ids", f"{table}:input" if own else ""))
    ]
    ids = chain[0]
    about = "Embedding" if own else "Embedding, the target's"
    module = table if own else ""
    chain.append(draft.add(Node(table, "embedding", "Embedding", about, flow, "data", module, module), ids))
    beside: dict[str, str] = {}

    def add_beside(node: Node, tensor: str, about: str, *sources: str) -> None:
        other = draft.add(node, *sources)
        total = Node(f"{node.name}.sum", "plus", "+", about, flow, "data", tensor)
        beside[other] = draft.add(total, chain[-1], other)
        chain.append(total.name)

    if config.embedding_ngrams > 1:
        name, about = "embedding_ngrams", "N-gram tables"
        add_beside(Node(name, "ngrams", about, about, flow, "data", name, name), "", "Embedding plus n-grams", ids)
    if config.n_token_types:
        add_beside(
            Node("segments", "segments", "Token types", "Token types", flow, "data", "segments", "segments"),
            "",
            "Embedding plus token types",
        )
    norm = f"{side}embedding_norm"
    if config.positions in ADDED:
        name = f"{side}positions"
        label = POSITION_NAMES[config.positions]
        learned = name if config.positions == "learned" else ""
        node = Node(name, config.positions, label, label, (length, "D"), "positions", "", learned)
        add_beside(node, f"{norm}:input", "Embedding plus positions")
    if config.embedding_norm:
        node = Node(norm, "norm", NORM_NAMES[config.norm], "Norm of the embedding", flow, "data", norm, norm)
        chain.append(draft.add(node, chain[-1]))
    if rate := config.dropout:
        name, about = f"{side}dropout", "Dropout of the embedding"
        node = Node(name, "dropout", f"dropout {rate:g}", about, flow, "data", f"{stack}:input", rate=rate)
        chain.append(draft.add(node, chain[-1]))
    return chain, beside, chain[-1]


def _sublayer(draft: Draft, config: ModelConfig, site: AttentionPlan, source: str) -> tuple[SublayerPlan, str]:
    """A norm, a part, dropout and the sum with `source`, in the order of the config's norm position."""
    name = site.path.removesuffix(".part")
    kind = name.rpartition(".")[2].replace("_", "-")
    flow = ("B", site.queries, "D")
    is_pre, count = config.norm_position == "pre", site.n_layers
    norm = Node(
        f"{name}.norm",
        "norm",
        NORM_NAMES[config.norm],
        f"Norm of the {kind}",
        flow,
        "data",
        f"{name}.norm",
        f"{name}.norm",
        "",
        count,
    )
    inner = draft.add(norm, source) if is_pre else source
    if kind == "feedforward":
        last, rows = draw_feedforward(draft, config, site.path, inner, length=site.queries, count=count)
    else:
        last, rows = draw_attention(draft, config, site, inner)
    dropout = ""
    if rate := config.dropout:
        about = f"Dropout after the {kind}"
        node = Node(
            f"{name}.dropout",
            "dropout",
            f"dropout {rate:g}",
            about,
            flow,
            "data",
            f"{name}.dropout",
            "",
            "",
            count,
            0,
            rate,
        )
        last = dropout = draft.add(node, last)
    if config.parallel_residual:
        return SublayerPlan(norm.name, site.path, rows, dropout, last), last
    add = f"{name}.add"
    tensor = name if is_pre else f"{name}.norm:input"
    draft.add(Node(add, "add", "+", f"Residual sum of the {kind}", flow, "data", tensor, "", "", count), last)
    draft.connect(source, add, "residual")
    last = add if is_pre else draft.add(norm, add)
    return SublayerPlan(norm.name, site.path, rows, dropout, add), last


def _join(
    draft: Draft, sublayers: list[SublayerPlan], source: str, block: str, n_layers: int
) -> tuple[list[SublayerPlan], str]:
    """The sum of a block with parallel residuals; each plan's `add` is its branch's last node until here."""
    branches = [sublayer.add for sublayer in sublayers]
    flow = draft.nodes[source].axes
    add = draft.add(
        Node(f"{block}.add", "add", "+", "Residual sum of both", flow, "data", block, "", "", n_layers), *branches
    )
    draft.connect(source, add, "residual")
    return [replace(sublayer, add=add) for sublayer in sublayers], add


def _with_head(draft: Draft, config: ModelConfig, column: Column, last: str) -> Column:
    """The column with what turns its last node into logits."""
    flow, after, beside = ("B", "T", "D"), list(column.after), dict(column.beside)
    D, V = config.d_model, config.vocab_size
    if config.logit_ngrams > 1:
        name = "logit_ngrams"
        tables = draft.add(Node(name, "ngrams", "N-gram tables", "N-gram tables", flow, "data", name, name), "ids")
        total = Node(f"{name}.sum", "plus", "+", "Last layer plus n-grams", flow, "data", "")
        beside[tables] = last = draft.add(total, last, tables)
        after.append(last)
    if config.head_transform:
        name = "lm_head.transform"
        about = "Dense layer, activation and norm"
        node = Node(name, "transform", "Transform", about, flow, "data", name, name, flops=2 * D * D)
        last = draft.add(node, last)
        after.append(last)
    head = Node(
        "lm_head",
        "head",
        "Head, tied" if config.tie_embeddings else "Head",
        "Language-model head",
        ("B", "T", "V"),
        "logits",
        "lm_head",
        "lm_head",
        flops=2 * D * V,
    )
    after.append(draft.add(head, last))
    about = "Logits of each token" if config.architecture == "encoder" else "Logits of the next token"
    after.append(draft.add(Node("logits", "logits", "Logits", about, ("B", "T", "V"), "logits", "output"), head.name))
    return replace(column, after=tuple(after), beside=beside)
