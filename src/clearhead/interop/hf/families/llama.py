"""Llama and the families after it: RMSNorm, rotary positions, mostly gated feed-forwards."""

from clearhead.interop.hf.buffers import FREQUENCIES
from clearhead.interop.hf.families.gpt import ATTENTION, FEEDFORWARD
from clearhead.interop.hf.family import Entry, Family

LLAMA_NEEDS = {
    "architecture": "decoder",
    "norm": "rmsnorm",
    "norm_position": "pre",
    "positions": "rope",
    "partial_rotary_factor": 1.0,
}
LLAMA_OPTIONS: dict[str, str | tuple[str, ...]] = {
    "vocab_size": "vocab_size",
    "block_size": "max_position_embeddings",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "d_model": "hidden_size",
    "head_dim": "head_dim",
    "d_ff": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
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
LLAMA_BUFFERS = {"model.layers.N.self_attn.rotary_emb.inv_freq": FREQUENCIES}
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
    Entry("lm_head", "lm_head"),
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
    required_settings={"pretraining_tp": 1},
    buffers=LLAMA_BUFFERS,
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
    buffers=LLAMA_BUFFERS,
    entries=LLAMA_ENTRIES,
)

# Llama with biases in the maps to queries, keys and values (Yang et al. 2024, arXiv 2407.10671).
QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    needs=LLAMA_NEEDS | {"bias": False, "qkv_bias": True},
    activations={"swiglu": "silu"},
    activation_key="hidden_act",
    options=LLAMA_OPTIONS,
    absent=LLAMA_ABSENT | {"num_key_value_heads": 32},
    required_settings={"use_sliding_window": False},
    buffers=LLAMA_BUFFERS,
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
    required_settings={"attention_bias": False, "use_sliding_window": False},
    buffers=LLAMA_BUFFERS,
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
    needs=LLAMA_NEEDS | {"bias": False, "qkv_bias": False},
    activations={"swiglu": "silu"},
    activation_key="hidden_act",
    options=LLAMA_OPTIONS | {"sliding_window": "sliding_window"},
    absent=LLAMA_ABSENT | {"num_key_value_heads": 8, "sliding_window": 4096},
    buffers=LLAMA_BUFFERS,
    entries=LLAMA_ENTRIES,
)

# Llama with embeddings times sqrt(D), norms that scale by 1 + weight, and a gate that is a GELU (Gemma Team 2024,
# arXiv 2403.08295). Its first configs say gelu and compute the approximation.
GEMMA = Family(
    name="gemma",
    architecture="GemmaForCausalLM",
    needs=LLAMA_NEEDS | {"norm": "rmsnorm_plus_one", "scale_embedding": True, "bias": False, "qkv_bias": False},
    activations={"geglu": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu")},
    activation_key="hidden_act",
    options=LLAMA_OPTIONS,
    absent=LLAMA_ABSENT
    | {
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    required_settings={
        "attention_bias": False,
        "use_bidirectional_attention": (None, False),
        "hidden_activation": ("gelu_pytorch_tanh", None),
    },
    buffers=LLAMA_BUFFERS,
    entries=LLAMA_ENTRIES,
)
