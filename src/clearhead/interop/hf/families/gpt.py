"""GPT-2 and the families after it that norm with LayerNorm and have plain feed-forwards."""

from clearhead.interop.hf.buffers import CAUSAL_MASK, FORBIDDEN_SCORE, FREQUENCIES
from clearhead.interop.hf.family import BIASED, UNGATED, Entry, Family, OptionChoice
from clearhead.interop.hf.rotary import RotaryKeys

ATTENTION = "stack.blocks.N.self_attention"
FEEDFORWARD = "stack.blocks.N.feedforward"
PROJECTIONS = (f"{ATTENTION}.part.query", f"{ATTENTION}.part.key", f"{ATTENTION}.part.value")

# Radford et al. 2019. Its Conv1D keeps matrices transposed, with queries, keys and values in one.
GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    needs={
        "architecture": "decoder",
        "norm": "layernorm",
        "norm_position": "pre",
        "positions": "learned",
    },
    activations=UNGATED,
    activation_key="activation_function",
    options={
        "vocab_size": "vocab_size",
        "block_size": "n_positions",
        "n_layers": "n_layer",
        "n_heads": "n_head",
        "d_model": "n_embd",
        "d_ff": "n_inner",
        "norm_eps": "layer_norm_epsilon",
        "tie_embeddings": "tie_word_embeddings",
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
    required_settings={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    grouped=False,
    always=BIASED,
    buffers={"transformer.h.N.attn.bias": CAUSAL_MASK, "transformer.h.N.attn.masked_bias": FORBIDDEN_SCORE},
    prefix="transformer.",
    entries=(
        Entry("embedding", "transformer.wte"),
        Entry("positions", "transformer.wpe"),
        Entry(f"{ATTENTION}.norm", "transformer.h.N.ln_1"),
        Entry(PROJECTIONS, "transformer.h.N.attn.c_attn", transposed=True),
        Entry(f"{ATTENTION}.part.output", "transformer.h.N.attn.c_proj", transposed=True),
        Entry(f"{FEEDFORWARD}.norm", "transformer.h.N.ln_2"),
        Entry(f"{FEEDFORWARD}.part.up", "transformer.h.N.mlp.c_fc", transposed=True),
        Entry(f"{FEEDFORWARD}.part.down", "transformer.h.N.mlp.c_proj", transposed=True),
        Entry("stack.norm", "transformer.ln_f"),
        Entry("lm_head", "lm_head"),
    ),
)


# Zhang et al. 2022 (arXiv 2205.01068). Positions are counted from 2, so nobody reads the first two rows of their table.
OPT = Family(
    name="opt",
    architecture="OPTForCausalLM",
    needs={"architecture": "decoder", "norm": "layernorm", "norm_eps": 1e-5, "positions": "learned"},
    activations=UNGATED,
    activation_key="activation_function",
    choices={"norm_position": OptionChoice("do_layer_norm_before", {"pre": True, "post": False})},
    options={
        "vocab_size": "vocab_size",
        "block_size": "max_position_embeddings",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "d_model": ("hidden_size", "word_embed_proj_dim"),
        "d_ff": "ffn_dim",
        "bias": "enable_bias",
        "tie_embeddings": "tie_word_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    absent={
        "word_embed_proj_dim": None,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "enable_bias": True,
        "tie_word_embeddings": True,
        "dropout": 0.1,
        "attention_dropout": 0.0,
    },
    required_settings={"layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False},
    grouped=False,
    prefix="model.",
    entries=(
        Entry("embedding", "model.decoder.embed_tokens"),
        Entry("positions", "model.decoder.embed_positions", unread_rows=2),
        Entry(f"{ATTENTION}.norm", "model.decoder.layers.N.self_attn_layer_norm"),
        Entry(f"{ATTENTION}.part.query", "model.decoder.layers.N.self_attn.q_proj"),
        Entry(f"{ATTENTION}.part.key", "model.decoder.layers.N.self_attn.k_proj"),
        Entry(f"{ATTENTION}.part.value", "model.decoder.layers.N.self_attn.v_proj"),
        Entry(f"{ATTENTION}.part.output", "model.decoder.layers.N.self_attn.out_proj"),
        Entry(f"{FEEDFORWARD}.norm", "model.decoder.layers.N.final_layer_norm"),
        Entry(f"{FEEDFORWARD}.part.up", "model.decoder.layers.N.fc1"),
        Entry(f"{FEEDFORWARD}.part.down", "model.decoder.layers.N.fc2"),
        Entry("stack.norm", "model.decoder.final_layer_norm"),
        Entry("lm_head", "lm_head"),
    ),
)

# Black et al. 2022 (arXiv 2204.06745), and Pythia (Biderman et al. 2023, arXiv 2304.01373).
GPT_NEOX = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    needs={"architecture": "decoder", "norm": "layernorm", "norm_position": "pre", "positions": "rope"},
    activations=UNGATED,
    activation_key="hidden_act",
    options={
        "parallel_residual": "use_parallel_residual",
        "vocab_size": "vocab_size",
        "block_size": "max_position_embeddings",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "d_model": "hidden_size",
        "d_ff": "intermediate_size",
        "norm_eps": "layer_norm_eps",
        "tie_embeddings": "tie_word_embeddings",
        "dropout": "hidden_dropout",
        "attention_dropout": "attention_dropout",
    },
    absent={
        "hidden_act": "gelu",
        "use_parallel_residual": True,
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    required_settings={"attention_bias": True},
    rotary=RotaryKeys("rotary_emb_base", "rotary_pct", 0.25),
    grouped=False,
    always=BIASED,
    copies={"embed_out.weight": "embedding.weight"},
    buffers={
        "gpt_neox.layers.N.attention.bias": CAUSAL_MASK,
        "gpt_neox.layers.N.attention.masked_bias": FORBIDDEN_SCORE,
        "gpt_neox.layers.N.attention.rotary_emb.inv_freq": FREQUENCIES,
    },
    old_names={"lm_head.": "embed_out."},  # as transformers 5 has it in memory
    entries=(
        Entry("embedding", "gpt_neox.embed_in"),
        Entry(f"{ATTENTION}.norm", "gpt_neox.layers.N.input_layernorm"),
        Entry(PROJECTIONS, "gpt_neox.layers.N.attention.query_key_value", by_head=True),
        Entry(f"{ATTENTION}.part.output", "gpt_neox.layers.N.attention.dense"),
        Entry(f"{FEEDFORWARD}.norm", "gpt_neox.layers.N.post_attention_layernorm"),
        Entry(f"{FEEDFORWARD}.part.up", "gpt_neox.layers.N.mlp.dense_h_to_4h"),
        Entry(f"{FEEDFORWARD}.part.down", "gpt_neox.layers.N.mlp.dense_4h_to_h"),
        Entry("stack.norm", "gpt_neox.final_layer_norm"),
        Entry("lm_head", "embed_out"),
    ),
)
