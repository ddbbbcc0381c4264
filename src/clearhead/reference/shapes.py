"""The names and shapes of a model's weights, without building it."""

from collections.abc import Callable, Iterator

from clearhead.config import GATED, ModelConfig
from clearhead.reference.arrays import Shape
from clearhead.reference.ngrams import table_size
from clearhead.reference.norms import NORMS

Shapes = dict[str, Shape]


def weight_shapes(config: ModelConfig) -> Shapes:
    """Every weight of the model by its name in `state_dict()`, with its shape. A matrix is (out, in)."""
    return SHAPES[config.architecture](config)


def _bigram(config: ModelConfig) -> Shapes:
    return {"embedding.weight": (config.vocab_size, config.vocab_size)}


def _decoder(config: ModelConfig) -> Shapes:
    tables = {"embedding_ngrams": config.embedding_ngrams, "logit_ngrams": config.logit_ngrams}
    ngrams = {f"{name}.weight": _ngrams(config, longest) for name, longest in tables.items() if longest > 1}
    return _stack_lm(config) | ngrams


def _ngrams(config: ModelConfig, longest: int) -> Shape:
    return sum(table_size(n, config) for n in range(2, longest + 1)), config.d_model


def _stack_lm(config: ModelConfig) -> Shapes:
    return {
        "embedding.weight": (config.vocab_size, config.d_model),
        **_with_prefix("positions", _positions(config)),
        **_with_prefix("embedding_norm", _norm(config) if config.embedding_norm else {}),
        **_with_prefix("stack", _stack(config, config.n_layers)),
        **_with_prefix("lm_head", _head(config)),
    }


def _encoder(config: ModelConfig) -> Shapes:
    segments = {"segments.weight": (config.n_token_types, config.d_model)} if config.n_token_types else {}
    return _stack_lm(config) | segments


def _encoder_decoder(config: ModelConfig) -> Shapes:
    shapes: Shapes = {"embedding.weight": (config.vocab_size, config.d_model)}
    if config.source_vocab_size is not None:
        shapes["source_embedding.weight"] = (config.source_vocab_size, config.d_model)
    for side in ("source_", ""):
        shapes |= _with_prefix(f"{side}positions", _positions(config))
        shapes |= _with_prefix(f"{side}embedding_norm", _norm(config) if config.embedding_norm else {})
    shapes |= _with_prefix("encoder", _stack(config, config.n_encoder_layers))
    shapes |= _with_prefix("decoder", _stack(config, config.n_layers, cross=True))
    return shapes | _with_prefix("lm_head", _head(config))


SHAPES: dict[str, Callable[[ModelConfig], Shapes]] = {
    "decoder": _decoder,
    "bigram": _bigram,
    "encoder": _encoder,
    "encoder_decoder": _encoder_decoder,
}


def _with_prefix(prefix: str, shapes: Shapes) -> Shapes:
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def _positions(config: ModelConfig) -> Shapes:
    learned: Shapes = {
        "learned": (config.block_size, config.d_model),
        "relative": (config.relative_buckets, config.n_heads),
    }
    return {"weight": learned[config.positions]} if config.positions in learned else {}


def _norm(config: ModelConfig) -> Shapes:
    return NORMS[config.norm].shapes(config.d_model)


def _linear(name: str, n_in: int, n_out: int, *, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (n_out, n_in)
    if bias:
        yield f"{name}.bias", (n_out,)


def _attention(config: ModelConfig) -> Shapes:
    D, K = config.d_model, config.head_dim
    widths = {"query": config.n_heads * K, "key": config.n_kv_heads * K, "value": config.n_kv_heads * K}
    shapes = dict(_linear("output", config.n_heads * K, D, bias=config.bias))
    for name, width in widths.items():
        shapes |= dict(_linear(name, D, width, bias=config.qkv_bias))
    if config.qk_norm:
        shapes |= {"query_norm.weight": (K,), "key_norm.weight": (K,)}
    return shapes


def _feedforward(config: ModelConfig) -> Shapes:
    D, d_ff = config.d_model, config.d_ff
    shapes = dict(_linear("down", d_ff, D, bias=config.bias))
    for name in ("up", "gate") if config.feedforward in GATED else ("up",):
        shapes |= dict(_linear(name, D, d_ff, bias=config.bias))
    return shapes


def _stack(config: ModelConfig, n_layers: int, *, cross: bool = False) -> Shapes:
    parts = {"self_attention": _attention(config), "feedforward": _feedforward(config)}
    if cross:
        parts["cross_attention"] = _attention(config)
    block: Shapes = {}
    for name, part in parts.items():
        block |= _with_prefix(f"{name}.part", part) | _with_prefix(f"{name}.norm", _norm(config))
    shapes: Shapes = {}
    for layer in range(n_layers):
        shapes |= _with_prefix(f"blocks.{layer}", block)
    return shapes | (_with_prefix("norm", _norm(config)) if config.norm_position == "pre" else {})


def _head(config: ModelConfig) -> Shapes:
    shapes: Shapes = {} if config.tie_embeddings else {"weight": (config.vocab_size, config.d_model)}
    if config.head_bias:
        shapes["bias"] = (config.vocab_size,)
    if config.head_transform:
        shapes |= dict(_linear("transform.dense", config.d_model, config.d_model, bias=True))
        shapes |= _with_prefix("transform.norm", _norm(config))
    return shapes
