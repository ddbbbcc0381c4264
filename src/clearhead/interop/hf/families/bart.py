"""BART and the families that transformers derives from it; they differ in their positions and in where norms stand."""

from clearhead.interop.hf.constants import WAVES
from clearhead.interop.hf.family import BIASED, UNGATED, Entry, Family

OPTIONS: dict[str, str | tuple[str, ...]] = {
    "vocab_size": "vocab_size",
    "pad_id": "pad_token_id",
    "block_size": "max_position_embeddings",
    "n_layers": "decoder_layers",
    "n_encoder_layers": "encoder_layers",
    "n_heads": ("decoder_attention_heads", "encoder_attention_heads"),
    "d_model": "d_model",
    "d_ff": ("decoder_ffn_dim", "encoder_ffn_dim"),
    "scale_embedding": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "feedforward_dropout": "activation_dropout",
}
ABSENT = {
    "activation_function": "gelu",
    "scale_embedding": False,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
NEEDS = {
    "architecture": "encoder_decoder",
    "source_vocab_size": None,
    "norm": "layernorm",
    "norm_eps": 1e-5,
    "tie_embeddings": True,
}
STATIC = {"positions": "sinusoidal", "rope_theta": 10_000.0}
ALWAYS = BIASED | {"head_bias": True}
REQUIRED_SETTINGS = {"is_encoder_decoder": True, "is_decoder": False, "tie_word_embeddings": True}
EXTRA_SETTINGS = {"forced_eos_token_id": None}  # where a text may grow no longer, nothing is put behind it
COPIES = dict.fromkeys(
    ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), "embedding.weight"
)
TABLES = {"model.encoder.embed_positions.weight": WAVES, "model.decoder.embed_positions.weight": WAVES}


def _attention(own: str, foreign: str) -> tuple[Entry, ...]:
    return (
        Entry(f"{own}.norm", f"{foreign}_layer_norm"),
        Entry(f"{own}.part.query", f"{foreign}.q_proj"),
        Entry(f"{own}.part.key", f"{foreign}.k_proj"),
        Entry(f"{own}.part.value", f"{foreign}.v_proj"),
        Entry(f"{own}.part.output", f"{foreign}.out_proj"),
    )


def _stack(stack: str) -> tuple[Entry, ...]:
    own, foreign = f"{stack}.blocks.N", f"model.{stack}.layers.N"
    return (
        *_attention(f"{own}.self_attention", f"{foreign}.self_attn"),
        Entry(f"{own}.feedforward.norm", f"{foreign}.final_layer_norm"),
        Entry(f"{own}.feedforward.part.up", f"{foreign}.fc1"),
        Entry(f"{own}.feedforward.part.down", f"{foreign}.fc2"),
    )


ENTRIES = (
    Entry("embedding", "model.shared"),
    *_stack("encoder"),
    *_stack("decoder"),
    *_attention("decoder.blocks.N.cross_attention", "model.decoder.layers.N.encoder_attn"),
    Entry("lm_head.bias", "final_logits_bias", row=True, optional=True),
)

# Lewis et al. 2019 (arXiv 1910.13461): learned positions, whose first two rows fairseq kept for itself.
BART = Family(
    name="bart",
    architecture="BartForConditionalGeneration",
    needs=NEEDS | {"norm_position": "post", "positions": "learned", "embedding_norm": True},
    activations=UNGATED,
    activation_key="activation_function",
    options=OPTIONS,
    absent=ABSENT | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    required_settings=REQUIRED_SETTINGS,
    extra_settings=EXTRA_SETTINGS,
    grouped=False,
    always=ALWAYS,
    translates=True,
    copies=COPIES,
    ignored=("model.encoder.version", "model.decoder.version"),
    prefix="model.",
    entries=(
        *ENTRIES,
        Entry("source_positions", "model.encoder.embed_positions", unread_rows=2),
        Entry("positions", "model.decoder.embed_positions", unread_rows=2),
        Entry("source_embedding_norm", "model.encoder.layernorm_embedding"),
        Entry("embedding_norm", "model.decoder.layernorm_embedding"),
    ),
)

# Zhang et al. 2020 (arXiv 1912.08777).
PEGASUS = Family(
    name="pegasus",
    architecture="PegasusForConditionalGeneration",
    needs=NEEDS | STATIC | {"norm_position": "pre"},
    activations=UNGATED,
    activation_key="activation_function",
    options=OPTIONS,
    absent=ABSENT | {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    required_settings=REQUIRED_SETTINGS,
    extra_settings=EXTRA_SETTINGS,
    grouped=False,
    always=ALWAYS,
    translates=True,
    halves=True,
    copies=COPIES,
    constants=TABLES,
    entries=(
        *ENTRIES,
        Entry("encoder.norm", "model.encoder.layer_norm"),
        Entry("decoder.norm", "model.decoder.layer_norm"),
    ),
)

# Junczys-Dowmunt et al. 2018 (arXiv 1804.00344): the published Transformer, post-norm.
MARIAN = Family(
    name="marian",
    architecture="MarianMTModel",
    needs=NEEDS | STATIC | {"norm_position": "post"},
    activations=UNGATED,
    activation_key="activation_function",
    options=OPTIONS | {"vocab_size": ("vocab_size", "decoder_vocab_size")},
    absent=ABSENT
    | {"decoder_vocab_size": None, "pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
    required_settings=REQUIRED_SETTINGS | {"share_encoder_decoder_embeddings": True},
    extra_settings=EXTRA_SETTINGS,
    grouped=False,
    always=ALWAYS,
    translates=True,
    halves=True,
    copies=COPIES,
    constants=TABLES,
    entries=ENTRIES,
)
