"""The families of encoder-decoders that transformers derives from BART; they differ in where the norms stand."""

from clearhead.exchange.family import PLAIN, Entry, Family
from clearhead.exchange.fixed import NO_LOGITS, WAVES

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
    **{option: value for option, value in PLAIN.items() if option != "scale_embedding"},
    "architecture": "encoder_decoder",
    "source_vocab_size": None,
    "norm": "layernorm",
    "norm_epsilon": 1e-5,
    "positions": "sinusoidal",
    "rope_base": 10_000.0,
    "tied": True,
}
CONSTANTS = {"is_encoder_decoder": True, "is_decoder": False, "tie_word_embeddings": True}
WRITTEN = {"forced_eos_token_id": None}  # where a text may grow no longer, nothing is put behind it
COPIES = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
FIXED = {
    "final_logits_bias": NO_LOGITS,
    "model.encoder.embed_positions.weight": WAVES,
    "model.decoder.embed_positions.weight": WAVES,
}


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
)

# Zhang et al. 2020 (arXiv 1912.08777).
PEGASUS = Family(
    name="pegasus",
    architecture="PegasusForConditionalGeneration",
    needs=NEEDS | {"norm_place": "pre"},
    activations={"gelu": "gelu", "relu": "relu", "relu2": "relu2"},
    activation_key="activation_function",
    options=OPTIONS,
    absent=ABSENT | {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    constants=CONSTANTS,
    written=WRITTEN,
    grouped=False,
    always_biased=True,
    translates=True,
    halves=True,
    copies=COPIES,
    fixed=FIXED,
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
    needs=NEEDS | {"norm_place": "post"},
    activations={"gelu": "gelu", "relu": "relu", "relu2": "relu2"},
    activation_key="activation_function",
    options=OPTIONS | {"vocab_size": ("vocab_size", "decoder_vocab_size")},
    absent=ABSENT
    | {"decoder_vocab_size": None, "pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100},
    constants=CONSTANTS | {"share_encoder_decoder_embeddings": True},
    written=WRITTEN,
    grouped=False,
    always_biased=True,
    translates=True,
    halves=True,
    copies=COPIES,
    fixed=FIXED,
    entries=ENTRIES,
)
