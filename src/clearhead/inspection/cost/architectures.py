"""What each architecture costs by itself: parameters by part, FLOPs per token, numbers that are kept. No torch."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from clearhead.config import GATED, ModelConfig
from clearhead.reference.norms import NORMS

# Numbers per hidden unit that a feed-forward keeps.
SAVED_ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu_tanh": 2, "silu": 2, "relu2": 2, "swiglu": 4, "geglu": 4}


@dataclass(frozen=True)
class ArchitectureCost:
    """What an architecture costs by itself; the account follows from it in one way for all.

    `kept_numbers` are kept per token for the backward pass, the logits apart; `cached_numbers` per token that
    generation has read. A token of an encoder-decoder is one of the target together with one of the source.
    """

    parts: dict[str, int]
    flops_per_token: int = 0
    kept_numbers: int = 0
    cached_numbers: int = 0


def _bigram(model: ModelConfig) -> ArchitectureCost:
    """A table and a lookup in it."""
    return ArchitectureCost({"embedding": model.vocab_size * model.vocab_size})


def _decoder(model: ModelConfig) -> ArchitectureCost:
    """One stack, and n-gram tables, in which there is nothing to multiply."""
    costs = _with_tables(_stack(model, model.n_layers), model)
    lengths = [*range(2, model.embedding_ngrams + 1), *range(2, model.logit_ngrams + 1)]
    rows = sum(min((model.vocab_size + 1) ** n, model.ngram_rows) for n in lengths)
    return replace(costs, parts=costs.parts | {"ngram_tables": rows * model.d_model})


def _encoder(model: ModelConfig) -> ArchitectureCost:
    """One stack without a cache: there is nothing to go on with."""
    return replace(_with_tables(_stack(model, model.n_layers), model), cached_numbers=0)


def _encoder_decoder(model: ModelConfig) -> ArchitectureCost:
    """Two stacks; the second attends to the first one's output as well, so its cache holds what it made of both."""
    encoder = _stack(model, model.n_encoder_layers)
    decoder = _stack(model, model.n_layers, cross=True)
    both = ArchitectureCost(
        parts={f"encoder_{part}": count for part, count in encoder.parts.items()}
        | {f"decoder_{part}": count for part, count in decoder.parts.items()},
        flops_per_token=encoder.flops_per_token + decoder.flops_per_token,
        kept_numbers=encoder.kept_numbers + decoder.kept_numbers,
        cached_numbers=decoder.cached_numbers,
    )
    return _with_tables(both, model, source=True)


COSTS: dict[str, Callable[[ModelConfig], ArchitectureCost]] = {
    "decoder": _decoder,
    "bigram": _bigram,
    "encoder": _encoder,
    "encoder_decoder": _encoder_decoder,
}


def _with_tables(stacks: ArchitectureCost, model: ModelConfig, *, source: bool = False) -> ArchitectureCost:
    """The stacks' costs and those of what lies around them: embeddings, learned positions, the head.

    The head is a matrix that every token is multiplied with, even if tied; an embedding is only looked up.
    """
    D, V = model.d_model, model.vocab_size
    learned = {"learned": model.block_size * D, "relative": model.relative_buckets * model.n_heads}
    norm = _norm(model) if model.embedding_norm else 0
    transform = D * D if model.head_transform else 0
    parts = {"embedding": (V + model.n_token_types) * D + norm}
    if source:
        parts["source_embedding"] = (model.source_vocab_size or 0) * D + norm  # none: the source uses the other's
    parts["positions"] = (1 + source) * learned.get(model.positions, 0)
    own, shift = 0 if model.tie_embeddings else V * D, V if model.head_bias else 0
    head = own + shift + (transform + D + _norm(model) if transform else 0)
    return replace(
        stacks,
        parts=parts | stacks.parts | {"head": head},
        flops_per_token=stacks.flops_per_token + 2 * (V * D + transform),
    )


def _stack(model: ModelConfig, n_layers: int, *, cross: bool = False) -> ArchitectureCost:
    """`n_layers` blocks, with cross-attention or without.

    FLOPs of one forward pass are, per token, 2 N + 4 A D T. N counts the numbers in the matrices that a token is
    multiplied with, at one multiplication and one addition each. The second term is attention: queries with T keys,
    and T weights with the values, in each of A attentions; as is the custom, T is the whole context (or the window)
    although a causal token sees half of it on average. The backward pass takes twice as many.

    Source: PaLM (Chowdhery et al. 2022), appendix B, 6 N + 12 L H Q T for forward and backward; Kaplan et al. 2020,
    section 2.1, is the same without the multiplication by the values.
    """
    n_attentions = n_layers * (1 + cross)
    matrices = n_attentions * _attention_matrices(model) + n_layers * _feedforward_matrices(model)
    return ArchitectureCost(
        parts=_stack_parts(model, n_layers, cross),
        flops_per_token=2 * matrices + 4 * n_attentions * _width(model) * attended_tokens(model),
        kept_numbers=_stack_kept(model, n_layers, cross),
        cached_numbers=2 * n_attentions * _kv_width(model),  # keys and values
    )


def _stack_parts(model: ModelConfig, n_layers: int, cross: bool) -> dict[str, int]:
    D = model.d_model
    attention_bias = (D if model.bias else 0) + (_width(model) + 2 * _kv_width(model) if model.qkv_bias else 0)
    feedforward_bias = (_projections_in(model) * model.d_ff + D) if model.bias else 0
    attention = n_layers * (_attention_matrices(model) + attention_bias)
    n_norms = (2 + cross) * n_layers + (model.norm_position == "pre")  # a pre-norm stack ends with one more
    qk_norms = 2 * model.head_dim * n_layers * (1 + cross) if model.qk_norm else 0
    return {
        "attention": attention,
        **({"cross_attention": attention} if cross else {}),
        "feedforward": n_layers * (_feedforward_matrices(model) + feedforward_bias),
        "norms": n_norms * _norm(model) + qk_norms,
    }


def _stack_kept(model: ModelConfig, n_layers: int, cross: bool) -> int:
    """Counted as in Korthikanti et al. 2022 (section 4.1), for fused attention, which keeps no T x T matrix."""
    D, kv = model.d_model, _kv_width(model)
    attention = 2 * _width(model) + 2 * kv  # queries, output; keys, values
    if model.qk_norm:
        attention += _width(model) + kv
    if model.keeps_scores:
        attention += 2 * model.n_heads * model.block_size
    norm = 2 if model.norm == "layernorm" else 3  # input and output; an RMSNorm the unscaled output too
    hidden = SAVED_ACTIVATIONS[model.feedforward]
    layer = (1 + cross) * attention + hidden * model.d_ff + (2 + cross) * norm * D
    return n_layers * layer + norm * D


def attended_tokens(model: ModelConfig) -> int:
    """How many keys a query meets at full context: the whole of it, or the window."""
    return min(model.block_size, model.sliding_window or model.block_size)


def _norm(model: ModelConfig) -> int:
    return sum(math.prod(shape) for shape in NORMS[model.norm].shapes(model.d_model).values())


def _width(model: ModelConfig) -> int:
    return model.n_heads * model.head_dim


def _kv_width(model: ModelConfig) -> int:
    return model.n_kv_heads * model.head_dim


def _projections_in(model: ModelConfig) -> int:
    return 2 if model.feedforward in GATED else 1


def _attention_matrices(model: ModelConfig) -> int:
    return 2 * model.d_model * (_width(model) + _kv_width(model))  # query and output; key and value


def _feedforward_matrices(model: ModelConfig) -> int:
    return (_projections_in(model) + 1) * model.d_model * model.d_ff
