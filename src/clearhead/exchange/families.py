"""The families, one table each, read in both directions. Nothing else in the library knows a foreign name."""

from clearhead.config import ModelConfig
from clearhead.exchange.bart import MARIAN, PEGASUS
from clearhead.exchange.family import PLAIN, Entry, Family

ATTENTION = "stack.blocks.N.self_attention"
FEEDFORWARD = "stack.blocks.N.feedforward"

# Radford et al. 2019. Its Conv1D keeps matrices transposed, with queries, keys and values in one.
GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    needs={
        **PLAIN,
        "architecture": "decoder",
        "norm": "layernorm",
        "norm_place": "pre",
        "positions": "learned",
    },
    activations={"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "relu2": "relu2"},
    activation_key="activation_function",
    options={
        "vocab_size": "vocab_size",
        "block_size": "n_positions",
        "n_layers": "n_layer",
        "n_heads": "n_head",
        "d_model": "n_embd",
        "d_ff": "n_inner",
        "norm_epsilon": "layer_norm_epsilon",
        "tied": "tie_word_embeddings",
        "dropout": ("embd_pdrop", "resid_pdrop"),
        "attention_dropout": "attn_pdrop",
    },
    absent={
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
    constants={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    grouped=False,
    always_biased=True,
    entries=(
        Entry("embedding", "transformer.wte"),
        Entry("positions", "transformer.wpe"),
        Entry(f"{ATTENTION}.norm", "transformer.h.N.ln_1"),
        Entry(
            (f"{ATTENTION}.part.query", f"{ATTENTION}.part.key", f"{ATTENTION}.part.value"),
            "transformer.h.N.attn.c_attn",
            transposed=True,
        ),
        Entry(f"{ATTENTION}.part.output", "transformer.h.N.attn.c_proj", transposed=True),
        Entry(f"{FEEDFORWARD}.norm", "transformer.h.N.ln_2"),
        Entry(f"{FEEDFORWARD}.part.up", "transformer.h.N.mlp.c_fc", transposed=True),
        Entry(f"{FEEDFORWARD}.part.down", "transformer.h.N.mlp.c_proj", transposed=True),
        Entry("stack.norm", "transformer.ln_f"),
        Entry("unembedding", "lm_head"),
    ),
)

LLAMA_NEEDS = {
    **PLAIN,
    "architecture": "decoder",
    "norm": "rmsnorm",
    "norm_place": "pre",
    "positions": "rope",
    "rope_fraction": 1.0,
}
LLAMA_OPTIONS: dict[str, str | tuple[str, ...]] = {
    "vocab_size": "vocab_size",
    "block_size": "max_position_embeddings",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "d_model": "hidden_size",
    "head_width": "head_dim",
    "d_ff": "intermediate_size",
    "norm_epsilon": "rms_norm_eps",
    "tied": "tie_word_embeddings",
    "attention_dropout": "attention_dropout",
}
LLAMA_ABSENT = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
}
LLAMA_ENTRIES = (
    Entry("embedding", "model.embed_tokens"),
    Entry(f"{ATTENTION}.norm", "model.layers.N.input_layernorm"),
    Entry(f"{ATTENTION}.part.query", "model.layers.N.self_attn.q_proj"),
    Entry(f"{ATTENTION}.part.key", "model.layers.N.self_attn.k_proj"),
    Entry(f"{ATTENTION}.part.value", "model.layers.N.self_attn.v_proj"),
    Entry(f"{ATTENTION}.part.output", "model.layers.N.self_attn.o_proj"),
    Entry(f"{FEEDFORWARD}.norm", "model.layers.N.post_attention_layernorm"),
    Entry(f"{FEEDFORWARD}.part.gate", "model.layers.N.mlp.gate_proj"),
    Entry(f"{FEEDFORWARD}.part.up", "model.layers.N.mlp.up_proj"),
    Entry(f"{FEEDFORWARD}.part.down", "model.layers.N.mlp.down_proj"),
    Entry("stack.norm", "model.norm"),
    Entry("unembedding", "lm_head"),
)

# Touvron et al. 2023.
LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    needs=LLAMA_NEEDS,
    activations={"swiglu": "silu"},
    activation_key="hidden_act",
    options=LLAMA_OPTIONS | {"bias": ("attention_bias", "mlp_bias")},
    absent=LLAMA_ABSENT,
    constants={"pretraining_tp": 1},
    entries=LLAMA_ENTRIES,
)

# Llama with a plain feed-forward instead of a gated one (Arcee AI 2025).
ARCEE = Family(
    name="arcee",
    architecture="ArceeForCausalLM",
    needs=LLAMA_NEEDS,
    activations={"relu2": "relu2", "relu": "relu", "gelu": "gelu"},
    activation_key="hidden_act",
    options=LLAMA_OPTIONS | {"bias": ("attention_bias", "mlp_bias")},
    absent=LLAMA_ABSENT | {"hidden_act": "relu2", "rms_norm_eps": 1e-5},
    entries=LLAMA_ENTRIES,
)

# Llama with QK-norm (Yang et al. 2025).
QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    needs=LLAMA_NEEDS | {"qk_norm": True, "bias": False, "qkv_bias": False},
    activations={"swiglu": "silu"},
    activation_key="hidden_act",
    options=LLAMA_OPTIONS,
    absent=LLAMA_ABSENT | {"num_key_value_heads": 32, "head_dim": 128},
    constants={"attention_bias": False, "use_sliding_window": False},
    entries=(
        *LLAMA_ENTRIES,
        Entry(f"{ATTENTION}.part.query_norm", "model.layers.N.self_attn.q_norm"),
        Entry(f"{ATTENTION}.part.key_norm", "model.layers.N.self_attn.k_norm"),
    ),
)

# Llama with a sliding window (Jiang et al. 2023).
MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    needs={option: value for option, value in LLAMA_NEEDS.items() if option != "window"}
    | {"bias": False, "qkv_bias": False},
    activations={"swiglu": "silu"},
    activation_key="hidden_act",
    options=LLAMA_OPTIONS | {"window": "sliding_window"},
    absent=LLAMA_ABSENT | {"num_key_value_heads": 8, "sliding_window": 4096},
    entries=LLAMA_ENTRIES,
)

FAMILIES: dict[str, Family] = {family.name: family for family in (GPT2, LLAMA, ARCEE, QWEN3, MISTRAL, PEGASUS, MARIAN)}


def family_of(config: ModelConfig) -> Family | None:
    """The first family that the config fits in, or None."""
    return next((family for family in FAMILIES.values() if not family.obstacles(config)), None)


def obstacle(config: ModelConfig) -> str | None:
    """Which options keep the config from the family that it is nearest to, in words; None if it fits in one."""
    everyone = FAMILIES.values()
    alike = [family for family in everyone if family.needs["architecture"] == config.architecture]
    nearest = min((family.obstacles(config) for family in alike or everyone), key=len)
    return " and ".join(nearest) or None
