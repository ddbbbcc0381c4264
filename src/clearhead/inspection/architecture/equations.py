"""What each node computes: its equation in symbols, then with the numbers of this model."""

import math
from collections.abc import Callable

from clearhead.config import GATED, ModelConfig
from clearhead.inspection.architecture.graph import ArchitectureGraph, Node

Lines = list[str]  # in the notation of `mathml`

NORMS = {
    "layernorm": (
        "y = frac{x - mu}{sqrt{sigma^2 + eps}} odot gamma + beta",
        "mu = mean(x), sigma^2 = mean((x - mu)^2)",
    ),
    "rmsnorm": ("y = frac{x}{sqrt{mean(x^2) + eps}} odot gamma",),
    "rmsnorm_plus_one": ("y = frac{x}{sqrt{mean(x^2) + eps}} odot (1 + gamma)",),
}
ACTIVATIONS = {
    "relu": ("ReLU", "ReLU(z) = max(z, 0)"),
    "relu2": ("ReLU^2", "ReLU^2(z) = max(z, 0)^2"),
    "gelu": ("GELU", "GELU(z) = frac{z}{2} (1 + erf(frac{z}{sqrt{2}}))"),
    "gelu_tanh": ("GELU", "GELU(z) approx frac{z}{2} (1 + tanh(sqrt{frac{2}{pi}} (z + 0.044715 z^3)))"),
    "silu": ("SiLU", "SiLU(z) = frac{z}{1 + e^{-z}}"),
}
ACTIVATIONS |= {"swiglu": ACTIVATIONS["silu"], "geglu": ACTIVATIONS["gelu_tanh"]}


def equations(graph: ArchitectureGraph, node: Node) -> Lines:
    """Symbols first, then this model's numbers; nothing for what only reads or hands on."""
    write = EQUATIONS.get(node.kind)
    return write(graph.config, node) if write else []


def decimal(value: float) -> str:
    """Short, and without an exponent where there is none to see: 8, 5.657, 1e-5."""
    if value and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g} cdot 10^{{-{-int(exponent)}}}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _matrix(name: str, rows: int, columns: int) -> str:
    return f"{name} in Reals^{{{rows:,} times {columns:,}}}"


def _embedding(config: ModelConfig, node: Node) -> Lines:
    V = config.vocab_size
    if node.name == "source_embedding":
        V = config.source_vocab_size or V
    scale = "sqrt{D} " if config.scale_embedding else ""
    lines = [f"x_t = {scale}E[id_t]", f'{_matrix("E", V, config.d_model)} ", " "V" times D']
    if config.scale_embedding:
        lines.append(f"sqrt{{D}} = sqrt{{{config.d_model:,}}} = {decimal(math.sqrt(config.d_model))}")
    return lines


def _learned(config: ModelConfig, node: Node) -> Lines:
    return ["x_t + P[t]", _matrix("P", config.block_size, config.d_model)]


def _sinusoidal(config: ModelConfig, node: Node) -> Lines:
    return [
        "P[t, 2i] = sin(frac{t}{theta^{2i/D}})",
        "P[t, 2i + 1] = cos(frac{t}{theta^{2i/D}})",
        f"theta = {decimal(config.rope_theta)} , D = {config.d_model:,}",
    ]


def _alibi(config: ModelConfig, node: Node) -> Lines:
    power = 2 ** math.floor(math.log2(config.n_heads))
    return [
        "P_{h,i,j} = - m_h |i - j|",
        f"m_1 = 2^{{-8/{power}}} = {decimal(2 ** (-8 / power))} , H = {config.n_heads}",
    ]


def _relative(config: ModelConfig, node: Node) -> Lines:
    return [
        "P_{h,i,j} = b[bucket(i - j), h]",
        f"{_matrix('b', config.relative_buckets, config.n_heads)} "
        f'", the last bucket from a distance of " {config.relative_max_distance:,}',
    ]


def _norm(config: ModelConfig, node: Node) -> Lines:
    per_head = "qk" if node.card else ""
    kind = "rmsnorm" if per_head else config.norm
    width = config.head_dim if per_head else config.d_model
    symbol = "{d_k}" if per_head else "D"
    return [*NORMS[kind], f"eps = {decimal(config.norm_eps)} , gamma in Reals^{symbol} = Reals^{{{width:,}}}"]


def _linear(config: ModelConfig, node: Node) -> Lines:
    name = node.name.rpartition(".")[2]
    D, K = config.d_model, config.head_dim
    if name in ("up", "gate"):
        label, bias = ("W_1", "b_1") if name == "up" else ('W_{"gate"}', 'b_{"gate"}')
        symbol = "h" if name == "up" else "g"
        shift = f" + {bias}" if config.bias else ""
        return [f"{symbol} = x {label}{shift}", f'{_matrix(label, D, config.d_ff)} ", " D times d_{{"ff"}}']
    letter = name[0].upper()
    heads = config.n_heads if name == "query" else config.n_kv_heads
    count = "H" if name == "query" or config.n_kv_heads == config.n_heads else 'H_{"kv"}'
    reads = "M" if ".cross_attention." in node.name and name != "query" else "x"
    shift = f" + b_{letter}" if config.qkv_bias else ""
    lines = [
        f"{letter} = {reads} W_{letter}{shift}",
        f'{_matrix(f"W_{letter}", D, heads * K)} ", " D times {count} d_k',
        f'{count} d_k = {heads:,} cdot {K:,} = {heads * K:,} ", split into " {heads:,} " heads"',
    ]
    if name != "query" and config.n_kv_heads != config.n_heads:
        lines.append(f'"each serves " H / H_{{"kv"}} = {config.n_heads // config.n_kv_heads} " heads of queries"')
    return lines


def _rotate(config: ModelConfig, node: Node) -> Lines:
    symbol = "q" if node.role == "query" else "k"
    half = "R/2"
    return [
        f"{symbol}'_i = {symbol}_i cos(t omega_i) - {symbol}_{{i+{half}}} sin(t omega_i)",
        f"{symbol}'_{{i+{half}}} = {symbol}_{{i+{half}}} cos(t omega_i) + {symbol}_i sin(t omega_i)",
        f"omega_i = theta^{{-2i/R}} , theta = {decimal(config.rope_theta)}",
        f'R = {config.rotary_width} " of the " {config.head_dim} " numbers of a head"',
    ]


def _scores(config: ModelConfig, node: Node) -> Lines:
    K = config.head_dim
    score = "frac{Q K^top}{sqrt{d_k}}" if config.scale_attention else "Q K^top"
    is_cross = ".cross_attention." in node.name
    bias = " + P" if config.positions in ("alibi", "relative") and not is_cross else ""
    cap = config.attention_softcap
    shown = f"c tanh(frac{{1}}{{c}} {score})" if cap else score
    lines = [f"S = {shown}{bias}"]
    if config.scale_attention:
        lines.append(f"sqrt{{d_k}} = sqrt{{{K:,}}} = {decimal(math.sqrt(K))}")
    if cap:
        lines.append(f"c = {decimal(cap)}")
    return [*lines, _square(config)]


def _square(config: ModelConfig) -> str:
    T = config.block_size
    return f'T times T = {T:,} times {T:,} = {T * T:,} " in each of " {config.n_heads:,} " heads"'


def _softmax(config: ModelConfig, node: Node) -> Lines:
    lines = ["A_{i,j} = frac{e^{S_{i,j}}}{sum_{j' \"allowed\"} e^{S_{i,j'}}}"]
    if node.name.startswith("decoder.") or node.name.startswith("stack."):
        causal = config.architecture != "encoder" and ".cross_attention." not in node.name
        if causal and config.sliding_window:
            lines.append(f'"position " i " may attend to " i - {config.sliding_window:,} < j le i')
        elif causal:
            lines.append('"position " i " may attend to " j le i ": itself and what is before it"')
        else:
            lines.append('"every position may attend to every other that is not padding"')
    else:
        lines.append('"every position may attend to every other that is not padding"')
    return [*lines, "sum_j A_{i,j} = 1"]


def _mix(config: ModelConfig, node: Node) -> Lines:
    return ["O = A V", f'"heads of width " d_k = {config.head_dim:,}']


def _output(config: ModelConfig, node: Node) -> Lines:
    D = config.d_model
    if node.name.endswith(".down"):
        shift = " + b_2" if config.bias else ""
        return [f"y = h W_2{shift}", f'{_matrix("W_2", config.d_ff, D)} ", " d_{{"ff"}} times D']
    width = config.n_heads * config.head_dim
    shift = " + b_O" if config.bias else ""
    return [f"y = concat(O_1, dots, O_H) W_O{shift}", f'{_matrix("W_O", width, D)} ", " H d_k times D']


def _attention(config: ModelConfig, node: Node) -> Lines:
    score = "frac{Q K^top}{sqrt{d_k}}" if config.scale_attention else "Q K^top"
    cross = ".cross_attention." in node.name
    reads = "M" if cross else "x"
    rotary = config.positions == "rope" and not cross
    lines = [f"y = concat(softmax({score}) V) W_O", f"Q = x W_Q , K = {reads} W_K , V = {reads} W_V"]
    if rotary:
        lines.append('Q , K " turned by their positions before they meet"')
    if config.scale_attention:
        lines.append(f"sqrt{{d_k}} = sqrt{{{config.head_dim:,}}} = {decimal(math.sqrt(config.head_dim))}")
    heads = f"H = {config.n_heads:,} , d_k = {config.head_dim:,} , D = {config.d_model:,}"
    kv = "" if config.n_kv_heads == config.n_heads else f' , H_{{"kv"}} = {config.n_kv_heads:,}'
    return [*lines, heads + kv]


def _feedforward(config: ModelConfig, node: Node) -> Lines:
    name, definition = ACTIVATIONS[config.feedforward]
    first, second = (" + b_1", " + b_2") if config.bias else ("", "")
    shift = ' + b_{"gate"}' if config.bias else ""
    gate = f'(x W_{{"gate"}}{shift})'
    hidden = f"({name}{gate} odot (x W_1{first}))" if config.feedforward in GATED else f"{name}(x W_1{first})"
    widths = f"D = {config.d_model:,} to {config.d_ff:,} to {config.d_model:,}"
    return [f"y = {hidden} W_2{second}", definition, widths]


def _activation(config: ModelConfig, node: Node) -> Lines:
    name, definition = ACTIVATIONS[config.feedforward]
    return [f"{name}(g) odot h" if config.feedforward in GATED else f"{name}(h)", definition]


def _add(config: ModelConfig, node: Node) -> Lines:
    if config.parallel_residual:
        return ['x + "attention"(norm_1(x)) + "feedforward"(norm_2(x))'.replace("norm", "N")]
    part = "cross_attention" if ".cross_attention." in node.name else node.name.split(".")[-2]
    name = f'"{part.replace("_", " ")}"'
    pre, post = f"x + {name}(N(x))", f"N(x + {name}(x))"
    return [
        f'{pre} ", " N " the norm: pre-norm"'
        if config.norm_position == "pre"
        else f'{post} ", " N " the norm: post-norm"'
    ]


def _dropout(config: ModelConfig, node: Node) -> Lines:
    rate = node.rate
    return [
        "y = frac{x odot m}{1 - p} , m sim Bernoulli(1 - p)",
        f'p = {rate:g} , frac{{1}}{{1 - p}} = {decimal(1 / (1 - rate))} " in training; nothing happens otherwise"',
    ]


def _head(config: ModelConfig, node: Node) -> Lines:
    D, V = config.d_model, config.vocab_size
    matrix = "E" if config.tie_embeddings else "W"
    scale = "frac{1}{sqrt{D}} " if config.scale_logits else ""
    shift = " + b" if config.head_bias else ""
    lines = [f'"logits" = {scale}h {matrix}^top{shift}', f'{_matrix(matrix, V, D)} ", " "V" times D']
    if config.tie_embeddings:
        lines.append('E " is the embedding\'s own matrix, and counted there"')
    if config.scale_logits:
        lines.append(f"frac{{1}}{{sqrt{{D}}}} = frac{{1}}{{sqrt{{{D:,}}}}} = {decimal(D**-0.5)}")
    return lines


def _transform(config: ModelConfig, node: Node) -> Lines:
    name, _ = ACTIVATIONS[config.feedforward]
    return [f"N({name}(h W + b))", _matrix("W", config.d_model, config.d_model)]


def _ngrams(config: ModelConfig, node: Node) -> Lines:
    longest = config.embedding_ngrams if node.name == "embedding_ngrams" else config.logit_ngrams
    return [
        "sum_{n = 2}^N G_n[hash(id_{t-n+1}, dots, id_t)]",
        f'N = {longest} , "at most " {config.ngram_rows:,} " rows for each length"',
    ]


def _segments(config: ModelConfig, node: Node) -> Lines:
    return ['x_t + S["type"_t]'.replace("S[", "U["), _matrix("U", config.n_token_types, config.d_model)]


def _plus(config: ModelConfig, node: Node) -> Lines:
    return ["x + y"]


def _bigram(config: ModelConfig, node: Node) -> Lines:
    V = config.vocab_size
    return ['"logits"_t = E[id_t]', f'{_matrix("E", V, V)} ", a row of logits for each token"']


EQUATIONS: dict[str, Callable[[ModelConfig, Node], Lines]] = {
    "embedding": _embedding,
    "learned": _learned,
    "sinusoidal": _sinusoidal,
    "alibi": _alibi,
    "relative": _relative,
    "norm": _norm,
    "linear": _linear,
    "rotate": _rotate,
    "scores": _scores,
    "softmax": _softmax,
    "mix": _mix,
    "output": _output,
    "attention": _attention,
    "feedforward": _feedforward,
    "activation": _activation,
    "add": _add,
    "dropout": _dropout,
    "head": _head,
    "transform": _transform,
    "ngrams": _ngrams,
    "segments": _segments,
    "plus": _plus,
    "bigram": _bigram,
}
