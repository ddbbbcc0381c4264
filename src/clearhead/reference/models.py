"""Every model's forward: token ids in, logits out.

Weights go by the names of the model's `state_dict()`. Positions, where given, are (B, T) and -1 for padding; the rows
of padding in what is returned mean nothing.
"""

import math
from collections.abc import Callable

from clearhead.config import ModelConfig
from clearhead.reference.arrays import Allowed, Array, Ids, Weights, within
from clearhead.reference.attention import Sight
from clearhead.reference.blocks import Memory, stack
from clearhead.reference.positions import ADDED, BIASED, TURNED, may_attend, positions_of


def decoder(
    weights: Weights, config: ModelConfig, ids: Ids, *, positions: Ids | None = None, documents: Ids | None = None
) -> Array:
    """Logits for the token after each token (Radford et al. 2018, equation 2): (B, T) -> (B, T, V).

    Args:
        positions: of the tokens; without them each row begins at 0 and has no padding.
        documents: (B, T) the number of each token's document: no attention from one to another.
    """
    place = positions_of(ids, None) if positions is None else positions  # (B, T)
    allowed = may_attend(place, place, causal=True, window=config.window, documents=documents)  # (B, T, T)
    x = embed(ids, place, weights, config)  # (B, T, D)
    x = stack(x, within(weights, "stack"), config, sight(place, allowed, weights, config), n_layers=config.n_layers)
    return head(x, weights, config)  # (B, T, V)


def encoder(
    weights: Weights, config: ModelConfig, ids: Ids, *, positions: Ids | None = None, documents: Ids | None = None
) -> Array:
    """Logits for the token that belongs at each place (Devlin et al. 2019, arXiv 1810.04805): (B, T) -> (B, T, V).

    Args:
        positions: of the tokens; without them the config's `pad_id` tells what is padding.
        documents: as in `decoder`.
    """
    place = positions_of(ids, config.pad_id) if positions is None else positions  # (B, T)
    allowed = may_attend(place, place, causal=False, documents=documents)  # (B, T, T)
    x = embed(ids, place, weights, config)  # (B, T, D)
    x = stack(x, within(weights, "stack"), config, sight(place, allowed, weights, config), n_layers=config.n_layers)
    return head(x, weights, config)  # (B, T, V)


def encoder_decoder(
    weights: Weights,
    config: ModelConfig,
    source: Ids,
    target: Ids,
    *,
    source_positions: Ids | None = None,
    target_positions: Ids | None = None,
) -> Array:
    """Logits for the token after each token of the target (Vaswani et al. 2017, section 3).

    (B, T_src), (B, T) -> (B, T, V).

    Args:
        source_positions, target_positions: of the tokens; without them the config's `pad_id` tells what is padding.
    """
    at = positions_of(source, config.pad_id) if source_positions is None else source_positions  # (B, T_src)
    place = positions_of(target, config.pad_id) if target_positions is None else target_positions  # (B, T)

    table = "embedding" if config.source_vocab_size is None else "source_embedding"
    x = embed(source, at, weights, config, table, "source_positions")  # (B, T_src, D)
    seen = sight(at, may_attend(at, at, causal=False), weights, config, "source_positions")
    states = stack(x, within(weights, "encoder"), config, seen, n_layers=config.n_encoder_layers)  # (B, T_src, D)

    y = embed(target, place, weights, config)  # (B, T, D)
    seen = sight(place, may_attend(place, place, causal=True), weights, config)
    memory = Memory(states, may_attend(place, at, causal=False))
    y = stack(y, within(weights, "decoder"), config, seen, memory, n_layers=config.n_layers)  # (B, T, D)
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


def embed(
    ids: Ids,
    positions: Ids,
    weights: Weights,
    config: ModelConfig,
    table: str = "embedding",
    places: str = "positions",
) -> Array:
    """A vector for each token, times sqrt(D) where asked, and for its place (Vaswani et al. 2017, sections 3.4, 3.5).

    (B, T) -> (B, T, D).
    """
    x = weights[f"{table}.weight"][ids]  # (V, D), (B, T) -> (B, T, D)
    if config.scale_embedding:
        x = x * math.sqrt(config.d_model)
    if config.positions in ADDED:
        x = x + ADDED[config.positions](positions, within(weights, places), config)
    return x


def sight(positions: Ids, allowed: Allowed, weights: Weights, config: ModelConfig, places: str = "positions") -> Sight:
    """What self-attention is told of positions (B, T), beside who may see whom (B, T, T)."""
    turned, biased = TURNED.get(config.positions), BIASED.get(config.positions)
    return Sight(
        allowed,
        turned(positions, config) if turned else None,
        biased(positions, positions, within(weights, places), config) if biased else None,
    )


def head(x: Array, weights: Weights, config: ModelConfig) -> Array:
    """How well each token would fit, x E^T, where E is the embedding if tied (Press & Wolf 2017, arXiv 1608.05859).

    (B, T, D) -> (B, T, V).
    """
    table = weights["embedding.weight"] if config.tied else weights["unembedding.weight"]  # (V, D)
    return x @ table.T  # (B, T, D) (D, V) -> (B, T, V)
