"""Small configs of transformers: every size is reduced, in a config and in the configs that it holds.

Two hundred architectures name the same few quantities in much the same words. Sizes are only ever reduced, derived
values are left to the config, and a stack keeps one layer of every kind that it mixes.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

VOCAB = 97  # ids; the last replaces every special token beyond it
FEW_LAYERS = 2
LAYERS = r"(\w+_(?<!per_))?(layers?|blocks|depth)"
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
ATTENTION = "full_attention"
HEADS = (("num_attention_heads", "num_key_value_heads"), ("swa_num_attention_heads", "swa_num_key_value_heads"))

WIDTHS = (
    (r"(?!vocab)\w*per_layer_input|laurel_rank", 8),
    (
        r"(\w+_)?(hidden|embedding|bottleneck|emb)_(size|dim)|d_model|n_embd|dim|dim_model_base|emb(ed)?_dim|\w*proj_dim",
        32,
    ),
    (r"(\w+_)?(intermediate|ffn|ffn_hidden|feed_forward)_(size|dim)(_\w+)?|d_ff|n_inner|d_inner|mlp_dim", 64),
    (r"qk_head_dim", 16),  # a part with positions, and one without
    (r"(\w+_)?(head_dim|headdim|head_size|d_head)|d_kv|d_head|dim_head|head_width", 8),
    (r"rotary_dim", 4),
    (r"axial_pos_embds_dim", 16),
    (r"\w+_rank", 16),
    (r"(\w+_)?expand", 1),
)
COUNTS = (
    (r"type_vocab_sizes?|num_labels|hash_seed", None),
    (r"(\w+_)?vocab_size(_\w+)?", VOCAB),
    (r"num_kv_shared_layers", 0),
    (r"num_(dense|mtp|nextn_predict)_layers|first_k_dense_replace|block_sizes", 1),
    (LAYERS, FEW_LAYERS),
    (r"num_self_attends_per_block", FEW_LAYERS),
    (r"(\w+_)?(key_value|kv|key)_heads|multi_query_group_num", 2),
    (r"(\w+_)?heads?(_per_\w+)?", 4),
    (r"(\w+_)?(n_groups?|ngroups|topk_group|shared_experts)", 1),
    (r"\w*experts_per_tok(en)?|moe_(topk|k|top_k)|top_k_experts|expert_top_k", 2),
    (r"(\w+_)?experts|zero_expert_num", 4),
    (r"\w*d_state|\w*state_size", 8),
    (r"(\w+_)?(chunk_size|chunk_length)", 8),
    (r"\w+_(period|interval|pattern|step)", 2),
    (r"(\w+_)?layer_offset", 1),
    (r"(\w+_)?(positions?|position_embeddings|seq_len|context_length|max_length)", 64),
    (r"attention_window", 8),
    (r"\w*(latents|mem_blocks|codebooks)", 4),
)  # fmt: skip

SIZES: tuple[tuple[str, int | None], ...] = (*WIDTHS, *COUNTS)


@dataclass(frozen=True)
class Shrinking:
    """How to make a config small."""

    sizes: Sequence[tuple[str, int | None]] = SIZES  # patterns of names, and the largest such size; None leaves it
    few_layers: bool = True  # a stack keeps only one layer of every kind
    fills: bool = False  # sizes and kinds of layers that a config leaves open are set


# Tried in turn, until a model can be built and called: some configs relate their sizes to each other
SHRINKINGS = (Shrinking(), Shrinking(fills=True), Shrinking(few_layers=False), Shrinking(COUNTS))


def small_config(cls: Any, shrinking: Shrinking, settings: Mapping[str, Any]) -> Any:
    """A config of this class, made small, with the settings."""
    default = cls()
    held = vars(default)  # getattr may refuse values that differ from layer to layer
    names = [name for name in inspect.signature(cls).parameters if not _is_derived(cls, name)]
    values = {name: held[name] if name in held else getattr(default, name, None) for name in names}
    small = {name: _smaller(name, value, shrinking) for name, value in values.items() if value is not None}
    if shrinking.few_layers:
        small |= _few_layers(values, held.get("num_hidden_layers", getattr(default, "num_hidden_layers", 0)), small)
    if shrinking.fills:
        small |= _filled(values, small)
    small |= _even_heads(values, small)
    if "pad_token_id" in names and values["pad_token_id"] not in range(VOCAB):
        small["pad_token_id"] = 0
    parts = {name: held.get(name) for name in getattr(cls, "sub_configs", {})}
    small |= {
        name: small_config(type(part), shrinking, {}) for name, part in parts.items() if hasattr(part, "model_type")
    }
    changed = {name: value for name, value in small.items() if name in parts or value != values.get(name)}
    return cls(**{**changed, **settings})


def _is_derived(cls: object, name: str) -> bool:
    """Whether a value follows from others and cannot be set."""
    attribute = getattr(cls, name, None)
    return isinstance(attribute, property) and attribute.fset is None


def _smaller(name: str, value: object, shrinking: Shrinking) -> object:
    if isinstance(value, (list, tuple)) and all(isinstance(part, int) for part in value):
        if _lists_layers(name, value):
            return type(value)(part for part in value if part < FEW_LAYERS or not shrinking.few_layers)
        return type(value)(_smaller(name, part, shrinking) for part in value)
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if re.search(r"_(id|index)$", name):
        return min(value, VOCAB - 1)
    size = _size(name, shrinking)
    return value if size is None else min(value, size)


def _lists_layers(name: str, value: Sequence[Any]) -> bool:
    """Whether it holds the numbers of some layers, in their order, and not one value for each layer."""
    return re.fullmatch(LAYERS, name) is not None and all(part < other for part, other in pairwise(value))


def _size(name: str, shrinking: Shrinking) -> int | None:
    if re.fullmatch(LAYERS, name) and not shrinking.few_layers:
        return None
    return next((size for pattern, size in shrinking.sizes if re.fullmatch(pattern, name)), None)


def _even_heads(values: Mapping[str, object], small: Mapping[str, object]) -> dict[str, object]:
    """As many heads for keys as for queries, if the full-size config has so."""
    pairs = ((queries, keys) for queries, keys in HEADS if queries in values)
    return {keys: small[queries] for queries, keys in pairs if values[queries] == values.get(keys)}


def _filled(values: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """Values that a config leaves open; and an attention layer in a stack without any."""
    sizes = {name: _size(name, Shrinking()) for name, value in values.items() if value is None}
    filled: dict[str, object] = {name: size for name, size in sizes.items() if size and not name.endswith("vocab_size")}
    for name in ("layer_types", "layers_block_type"):
        if name in values:
            kinds = small.get(name) or [ATTENTION]
            filled[name] = [kinds[0], *[ATTENTION] * (FEW_LAYERS - 1)]
    if "default_language" in values and values.get("languages"):
        filled["default_language"] = values["languages"][0]
    if "attn_layer_indices" in values:
        filled["attn_layer_indices"] = [FEW_LAYERS - 1]
    return filled


def _few_layers(values: Mapping[str, Any], n_layers: int, small: Mapping[str, Any]) -> dict[str, Any]:
    """Values per layer, for the first layer of every kind, and for at least two layers."""
    columns = {name: value for name, value in values.items() if isinstance(value, (list, tuple)) and value}
    columns = {name: held for name, held in columns.items() if len(held) == n_layers and not _lists_layers(name, held)}
    if not columns or n_layers <= FEW_LAYERS:
        return {}
    layers = zip(*columns.values(), strict=True)
    kinds = [tuple(part for part in layer if isinstance(part, (str, bool))) for layer in layers]
    first = [number for number, kind in enumerate(kinds) if kind not in kinds[:number]]
    more = [number for number in range(n_layers) if number not in first]
    chosen = sorted([*first, *more[: max(0, FEW_LAYERS - len(first))]])
    counts = {name: len(chosen) for name in values if name in DEPTHS}
    return {name: type(value)(small[name][n] for n in chosen) for name, value in columns.items()} | counts
