"""Every model's forward: token ids in, logits out.

Weights go by the names of the model's `state_dict()`. Positions, where given, are (B, T) and -1 for padding; the
logits at padding mean nothing.
"""

import math
from collections.abc import Callable

import numpy as np

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Allowed, Array, Ids, Weights, linear, subtree
from clearhead.reference.attention import AttentionInputs, AttentionSteps
from clearhead.reference.blocks import SourceMemory, stack
from clearhead.reference.feedforward import FEEDFORWARDS
from clearhead.reference.ngrams import ngram_vectors
from clearhead.reference.norms import normalize
from clearhead.reference.positions import ADDED, BIASED, ROTATED, may_attend, positions_of


def decoder(
    weights: Weights,
    config: ModelConfig,
    ids: Ids,
    *,
    positions: Ids | None = None,
    documents: Ids | None = None,
    kept: list[AttentionSteps] | None = None,
) -> Array:
    """Logits for the token after each token (Radford et al. 2018, equation 2): (B, T) -> (B, T, V).

    Args:
        positions: of the tokens; without them each row begins at 0 and has no padding.
        documents: (B, T) the number of each token's document: no attention from one to another.
        kept: each attention appends its steps to this list, in the order in which they compute.
    """
    positions = positions_of(ids, None) if positions is None else positions  # (B, T)
    window = config.sliding_window
    allowed = may_attend(positions, positions, causal=True, window=window, documents=documents)  # (B, T, T)
    x = embed(ids, weights, config)  # (B, T, D)
    if config.embedding_ngrams > 1:
        tables = subtree(weights, "embedding_ngrams")
        x = x + ngram_vectors(ids, positions, documents, tables, config, config.embedding_ngrams)  # (B, T, D)
    x = add_positions(x, positions, weights, config)  # (B, T, D)
    self_inputs = attention_inputs(positions, allowed, weights, config, causal=True)._replace(kept=kept)
    x = stack(x, subtree(weights, "stack"), config, self_inputs, n_layers=config.n_layers)  # (B, T, D)
    if config.logit_ngrams > 1:
        tables = subtree(weights, "logit_ngrams")
        x = x + ngram_vectors(ids, positions, documents, tables, config, config.logit_ngrams)  # (B, T, D)
    return head(x, weights, config)  # (B, T, V)


def encoder(
    weights: Weights,
    config: ModelConfig,
    ids: Ids,
    *,
    positions: Ids | None = None,
    documents: Ids | None = None,
    token_type_ids: Ids | None = None,
    kept: list[AttentionSteps] | None = None,
) -> Array:
    """Logits for the token at each position (Devlin et al. 2019, arXiv 1810.04805): (B, T) -> (B, T, V).

    Args:
        positions: of the tokens; without them the config's `pad_id` tells what is padding.
        documents, kept: as in `decoder`.
        token_type_ids: (B, T) of each token's segment, which has a vector as well (section 3 there); 0 without them.
    """
    positions = positions_of(ids, config.pad_id) if positions is None else positions  # (B, T)
    allowed = may_attend(positions, positions, causal=False, documents=documents)  # (B, T, T)
    x = embed(ids, weights, config)  # (B, T, D)
    if config.n_token_types:
        kinds = np.zeros_like(ids) if token_type_ids is None else token_type_ids  # (B, T)
        x = x + weights["segments.weight"][kinds]  # (B, T, D)
    x = add_positions(x, positions, weights, config)  # (B, T, D)
    self_inputs = attention_inputs(positions, allowed, weights, config, causal=False)._replace(kept=kept)
    x = stack(x, subtree(weights, "stack"), config, self_inputs, n_layers=config.n_layers)  # (B, T, D)
    return head(x, weights, config)  # (B, T, V)


def encoder_decoder(
    weights: Weights,
    config: ModelConfig,
    source: Ids,
    target: Ids,
    *,
    source_positions: Ids | None = None,
    target_positions: Ids | None = None,
    kept: list[AttentionSteps] | None = None,
) -> Array:
    """Logits for the token after each token of the target (Vaswani et al. 2017, section 3).

    (B, T_src), (B, T) -> (B, T, V).

    Args:
        source_positions, target_positions: of the tokens; without them the config's `pad_id` tells what is padding.
        kept: as in `decoder`; the encoder's attentions come first, then each block's self- and cross-attention.
    """
    pad, start = config.pad_id, config.decoder_start_id
    source_positions = positions_of(source, pad) if source_positions is None else source_positions  # (B, T_src)
    target_positions = positions_of(target, pad, start) if target_positions is None else target_positions  # (B, T)

    x = embed(source, weights, config, "embedding" if config.source_vocab_size is None else "source_embedding")
    x = add_positions(x, source_positions, weights, config, side="source_")  # (B, T_src, D)
    allowed = may_attend(source_positions, source_positions, causal=False)  # (B, T_src, T_src)
    self_inputs = attention_inputs(source_positions, allowed, weights, config, causal=False, side="source_")
    self_inputs = self_inputs._replace(kept=kept)
    encoder_weights = subtree(weights, "encoder")
    states = stack(x, encoder_weights, config, self_inputs, n_layers=config.n_encoder_layers)  # (B, T_src, D)

    y = add_positions(embed(target, weights, config), target_positions, weights, config)  # (B, T, D)
    allowed = may_attend(target_positions, target_positions, causal=True)  # (B, T, T)
    self_inputs = attention_inputs(target_positions, allowed, weights, config, causal=True)._replace(kept=kept)
    memory = SourceMemory(states, may_attend(target_positions, source_positions, causal=False))
    y = stack(y, subtree(weights, "decoder"), config, self_inputs, memory, n_layers=config.n_layers)  # (B, T, D)
    return head(y, weights, config)  # (B, T, V)


def bigram(
    weights: Weights, config: ModelConfig, ids: Ids, *, positions: Ids | None = None, documents: Ids | None = None
) -> Array:
    """Row i of the table holds the logits of the token that follows token i: (B, T) -> (B, T, V)."""
    return weights["embedding.weight"][ids]


FORWARDS: dict[str, Callable[..., Array]] = {
    "decoder": decoder,
    "bigram": bigram,
    "encoder": encoder,
    "encoder_decoder": encoder_decoder,
}


def embed(ids: Ids, weights: Weights, config: ModelConfig, table: str = "embedding") -> Array:
    """A vector for each token, times sqrt(D) where asked (Vaswani et al. 2017, section 3.4): (B, T) -> (B, T, D)."""
    x = weights[f"{table}.weight"][ids]  # (V, D), (B, T) -> (B, T, D)
    return x * math.sqrt(config.d_model) if config.scale_embedding else x


def add_positions(x: Array, positions: Ids, weights: Weights, config: ModelConfig, *, side: str = "") -> Array:
    """Embedded tokens with the vectors of their places (B, T), normalized where asked: (B, T, D) -> (B, T, D).

    `side` is what the names of the source's own weights begin with.
    """
    if config.positions in ADDED:
        x = x + ADDED[config.positions](positions, subtree(weights, f"{side}positions"), config)
    return normalize(x, subtree(weights, f"{side}embedding_norm"), config) if config.embedding_norm else x


def attention_inputs(
    positions: Ids, allowed: Allowed, weights: Weights, config: ModelConfig, *, causal: bool, side: str = ""
) -> AttentionInputs:
    """What self-attention reads at positions (B, T), under a mask (B, T, T); `side` as in `add_positions`."""
    angles = bias = None
    if config.positions in ROTATED:
        angles = ROTATED[config.positions](positions, config)  # (B, T, R/2)
    if config.positions in BIASED:
        table = subtree(weights, f"{side}positions")
        bias = BIASED[config.positions](positions, positions, table, config, causal=causal)  # (B, H, T, T)
    return AttentionInputs(allowed, angles, bias)


def head(x: Array, weights: Weights, config: ModelConfig) -> Array:
    """Logits x E^T, where E is the embedding if tied (Press & Wolf 2017, arXiv 1608.05859).

    (B, T, D) -> (B, T, V). Where asked, x is first norm(activation(dense(x))) (Devlin et al. 2019, in BERT's code) or
    divided by sqrt(D) (Raffel et al. 2020, arXiv 1910.10683, in T5's code), and each token has a bias.
    """
    if config.head_transform:
        transform = subtree(weights, "lm_head.transform")
        x = FEEDFORWARDS[config.feedforward].activation(linear(x, transform, "dense"))  # (B, T, D)
        x = normalize(x, subtree(transform, "norm"), config)  # (B, T, D)
    if config.scale_logits:
        x = x / math.sqrt(config.d_model)
    table = weights["embedding.weight"] if config.tie_embeddings else weights["lm_head.weight"]  # (V, D)
    logits = x @ table.T  # (B, T, D) (D, V) -> (B, T, V)
    return logits + weights["lm_head.bias"] if config.head_bias else logits
