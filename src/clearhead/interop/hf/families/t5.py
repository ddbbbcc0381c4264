"""T5: a bias for every distance in place of positions, and no other bias (Raffel et al. 2020, arXiv 1910.10683)."""

from clearhead.interop.hf.family import UNGATED, Entry, Family, Json

GATED: dict[str, str | tuple[str, ...]] = {"geglu": "gated-gelu", "swiglu": ("gated-silu", "gated-swish")}


def _attention(own: str, foreign: str, name: str) -> tuple[Entry, ...]:
    return (
        Entry(f"{own}.norm", f"{foreign}.layer_norm"),
        Entry(f"{own}.part.query", f"{foreign}.{name}.q"),
        Entry(f"{own}.part.key", f"{foreign}.{name}.k"),
        Entry(f"{own}.part.value", f"{foreign}.{name}.v"),
        Entry(f"{own}.part.output", f"{foreign}.{name}.o"),
    )


def _stack(stack: str, positions: str, last: int) -> tuple[Entry, ...]:
    """One stack; its blocks' feed-forwards come last. Its first block holds the bias that all of them add."""
    own, foreign = f"{stack}.blocks.N", f"{stack}.block.N.layer"
    feedforward, foreign_feedforward = f"{own}.feedforward", f"{foreign}.{last}"
    return (
        Entry(positions, f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"),
        *_attention(f"{own}.self_attention", f"{foreign}.0", "SelfAttention"),
        Entry(f"{feedforward}.norm", f"{foreign_feedforward}.layer_norm"),
        Entry(f"{feedforward}.part.up", f"{foreign_feedforward}.DenseReluDense.wi", only=tuple(UNGATED)),
        Entry(f"{feedforward}.part.gate", f"{foreign_feedforward}.DenseReluDense.wi_0", only=tuple(GATED)),
        Entry(f"{feedforward}.part.up", f"{foreign_feedforward}.DenseReluDense.wi_1", only=tuple(GATED)),
        Entry(f"{feedforward}.part.down", f"{foreign_feedforward}.DenseReluDense.wo"),
        Entry(f"{stack}.norm", f"{stack}.final_layer_norm"),
    )


def _upgrade(settings: Json) -> Json:
    """Null decoder layers are as many as the encoder's.

    Version 5 of transformers says of every head that it is tied, and tells by another key which ones are (v1.0) and
    which are not (v1.1): those of v1.0 read what is divided by sqrt(d_model).
    """
    layers, scaled = settings.get("num_decoder_layers"), settings.get("scale_decoder_outputs")
    settings = settings if layers is not None else settings | {"num_decoder_layers": settings.get("num_layers")}
    return settings if scaled is None else settings | {"tie_word_embeddings": scaled}


T5 = Family(
    name="t5",
    architecture="T5ForConditionalGeneration",
    needs={
        "architecture": "encoder_decoder",
        "source_vocab_size": None,
        "norm": "rmsnorm",
        "norm_position": "pre",
        "positions": "relative",
        "scale_attention": False,
        "bias": False,
        "qkv_bias": False,
    },
    activations={**UNGATED, **GATED},
    activation_key="feed_forward_proj",
    options={
        "vocab_size": "vocab_size",
        "pad_id": "pad_token_id",
        "block_size": "n_positions",  # where it was trained; its positions have no end
        "n_encoder_layers": "num_layers",
        "n_layers": "num_decoder_layers",
        "n_heads": "num_heads",
        "d_model": "d_model",
        "head_dim": "d_kv",
        "d_ff": "d_ff",
        "norm_eps": "layer_norm_epsilon",
        "relative_buckets": "relative_attention_num_buckets",
        "relative_max_distance": "relative_attention_max_distance",
        "tie_embeddings": "tie_word_embeddings",
        "scale_logits": "tie_word_embeddings",
        "dropout": "dropout_rate",
        "attention_dropout": "dropout_rate",
        "feedforward_dropout": "dropout_rate",
    },
    absent={
        "n_positions": 512,
        "feed_forward_proj": "relu",
        "layer_norm_epsilon": 1e-6,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "tie_word_embeddings": True,
        "dropout_rate": 0.1,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
    },
    required_settings={"is_encoder_decoder": True, "is_decoder": False},
    grouped=False,
    translates=True,
    copies=dict.fromkeys(
        ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "embedding.weight"
    ),
    upgrade=_upgrade,
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # a leftover of old files
    entries=(
        Entry("embedding", "shared"),
        *_stack("encoder", "source_positions", last=1),
        *_stack("decoder", "positions", last=2),
        *_attention("decoder.blocks.N.cross_attention", "decoder.block.N.layer.1", "EncDecAttention"),
        Entry("lm_head", "lm_head"),
    ),
)
