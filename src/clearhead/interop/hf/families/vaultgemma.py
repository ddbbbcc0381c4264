"""VaultGemma: Gemma with a soft cap on attention scores, as in Gemma 2 (Sinha et al. 2025, arXiv 2510.15001)."""

from clearhead.interop.hf.families.llama import GEMMA
from clearhead.interop.hf.family import Family, Json


def _upgrade(settings: Json) -> Json:
    """Where no layer slides, the window is of no account."""
    kinds = settings.get("layer_types")
    full = isinstance(kinds, list) and set(kinds) == {"full_attention"}
    return settings | {"sliding_window": settings.get("max_position_embeddings")} if full else settings


# Every other layer has a sliding window. Ours has none, so it is written as wide as the longest text.
VAULTGEMMA = Family(
    name="vaultgemma",
    architecture="VaultGemmaForCausalLM",
    needs=GEMMA.needs,
    activations={"geglu": "gelu_pytorch_tanh"},
    activation_key="hidden_activation",
    options={
        **GEMMA.options,
        "block_size": ("max_position_embeddings", "sliding_window"),
        "head_dim": ("head_dim", "query_pre_attn_scalar"),
        "attention_softcap": "attn_logit_softcapping",
    },
    absent={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    required_settings={"attention_bias": False, "final_logit_softcapping": None},
    entries=tuple(
        entry._replace(foreign=entry.foreign.replace("post_attention_layernorm", "pre_feedforward_layernorm"))
        for entry in GEMMA.entries
    ),
    upgrade=_upgrade,
)
