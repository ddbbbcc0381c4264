"""Published folders: their configs, the sizes that their publishers print, and tensors of older files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import AUTO, END, logits_of, random_config, random_inputs, random_model, save_as
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.interop import FAMILIES, SpecialTokens, links, load, read_config

# What the first files of each family say, with keys that mean nothing here, and how many parameters the model has.
PUBLISHED: dict[str, tuple[dict[str, Any], int, dict[str, object]]] = {
    "gpt2": (
        {
            "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
            "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
            "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
            "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None,
            "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
            "summary_use_proj": True, "vocab_size": 50257,
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
        124_439_808,
        {"feedforward": "gelu_tanh", "d_ff": 3072, "bias": True},
    ),
    "opt-125m": (
        {
            "_name_or_path": "opt-125m", "_remove_final_layer_norm": False, "activation_dropout": 0.0,
            "activation_function": "relu", "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0,
            "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 3072,
            "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048,
            "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
            "prefix": "</s>", "torch_dtype": "float16", "use_cache": True, "vocab_size": 50272,
            "word_embed_proj_dim": 768,
        },
        125_239_296,
        {"block_size": 2048, "bias": True, "tie_embeddings": True, "norm_position": "pre"},
    ),
    "pythia-70m": (
        {
            "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
            "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8,
            "num_hidden_layers": 6, "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
            "torch_dtype": "float16", "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
        },
        70_426_624,
        {"rotary_width": 16, "parallel_residual": True, "feedforward": "gelu"},
    ),
    "llama-2-7b": (
        {
            "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
            "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
            "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True,
            "vocab_size": 32000,
        },
        6_738_415_616,
        {"rope_theta": 10_000.0, "head_dim": 128, "bias": False},
    ),
    "mistral-7b": (
        {
            "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
            "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "sliding_window": 4096, "tie_word_embeddings": False, "use_cache": True, "vocab_size": 32000,
        },
        7_241_732_096,
        {"sliding_window": 4096, "n_kv_heads": 8, "head_dim": 128},
    ),
    "qwen2-0.5b": (
        {
            "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
            "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
            "intermediate_size": 4864, "max_position_embeddings": 131072, "max_window_layers": 24,
            "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": True,
            "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
        },
        494_032_768,
        {"rope_theta": 1e6, "qkv_bias": True, "bias": False, "tie_embeddings": True, "sliding_window": None},
    ),
    "qwen3-0.6b": (
        {
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960,
            "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
            "sliding_window": None, "tie_word_embeddings": True, "use_cache": True, "use_sliding_window": False,
            "vocab_size": 151936,
        },
        596_049_920,
        {"head_dim": 128, "n_heads": 16, "qk_norm": True},
    ),
    "gemma-2b": (
        {
            "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu", "hidden_activation": None,
            "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 16384,
            "max_position_embeddings": 8192, "model_type": "gemma", "num_attention_heads": 8,
            "num_hidden_layers": 18, "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 10000.0, "torch_dtype": "bfloat16", "use_cache": True,
            "vocab_size": 256000,
        },
        2_506_172_416,
        {"feedforward": "geglu", "tie_embeddings": True, "scale_embedding": True, "norm": "rmsnorm_plus_one"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_mean_models_of_their_printed_size(name: str, tmp_path: Path) -> None:
    settings, parameters, options = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    family, config = read_config(tmp_path)
    assert {option: getattr(config, option) for option in options} == options
    assert sum(math.prod(link.foreign_shape) for link in links(family, config)) == parameters


def test_what_published_files_have_and_ours_cannot_is_named(tmp_path: Path) -> None:
    small = PUBLISHED["opt-125m"][0] | {"do_layer_norm_before": False, "hidden_size": 1024, "word_embed_proj_dim": 512}
    stretched = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
    for settings, message in (
        (small, "hidden_size = 1024 and word_embed_proj_dim = 512 are not supported"),
        (PUBLISHED["llama-2-7b"][0] | {"rope_scaling": stretched}, "rotary positions with {'factor': 8.0"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        with pytest.raises(DataError, match=message):
            read_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "theta_key", "factor_key", "usual"),
    [("llama", "rope_theta", "partial_rotary_factor", 1.0), ("gpt_neox", "rotary_emb_base", "rotary_pct", 0.25)],
)
def test_rotary_positions_of_older_configs_are_read(name: str, theta_key: str, factor_key: str, usual: float) -> None:
    wide = {"n_heads": 1, "n_kv_heads": 1, "head_dim": 16, "d_model": 16, "partial_rotary_factor": usual}
    config = ModelConfig.read(random_config(name, 0).model_dump(), wide)
    settings = FAMILIES[name].foreign_config(config)
    for key in ("rope_parameters", theta_key, factor_key):
        settings.pop(key, None)

    def read(**changed: object) -> tuple[float, float]:
        own = FAMILIES[name].own_config({**settings, **changed})
        return own.rope_theta, own.partial_rotary_factor

    assert read() == (10_000.0, usual)
    assert read(**{theta_key: 777.0}) == (777.0, usual)
    assert read(**{theta_key: 777.0, "rope_parameters": {"rope_theta": 50.0}}) == (50.0, usual)
    assert read(rope_scaling={"type": "default", "rope_theta": 60.0}) == (60.0, usual)
    if name == "gpt_neox":
        assert read(**{factor_key: 0.5}) == (10_000.0, 0.5)
        assert read(**{factor_key: 0.5, "rope_parameters": {"partial_rotary_factor": 1.0}}) == (10_000.0, 1.0)


def causal(T: int) -> Tensor:
    return torch.ones(1, 1, T, T).tril()


def frequencies(config: ModelConfig) -> Tensor:
    width = config.rotary_width
    return torch.tensor([config.rope_theta ** (-pair / width) for pair in range(0, width, 2)])


def older(name: str, config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same file as earlier versions wrote it: other names, and tensors that hold no weights."""
    T, N = config.block_size, range(config.n_layers)
    if name == "gpt2":
        short = {key.removeprefix("transformer."): tensor for key, tensor in tensors.items()}
        masks = {f"h.{n}.attn.bias": causal(T) for n in N}
        return {**short, **masks, **{f"h.{n}.attn.masked_bias": torch.tensor(-1e4) for n in N}}
    if name == "opt":
        return {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    if name == "gpt_neox":
        block = "gpt_neox.layers.{}.attention."
        masks = {block.format(n) + "bias": causal(T).bool() for n in N}
        masks |= {block.format(n) + "masked_bias": torch.tensor(-1e9).half() for n in N}
        return {**tensors, **masks, **{block.format(n) + "rotary_emb.inv_freq": frequencies(config).half() for n in N}}
    assert name == "llama"
    return {**tensors, **{f"model.layers.{n}.self_attn.rotary_emb.inv_freq": frequencies(config) for n in N}}


def older_folder(name: str, folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    config = random_config(name, 1).model_copy(update={"tie_embeddings": True, "n_layers": 2})
    save_as(name, folder, random_model(config, 1), SpecialTokens(END))
    tensors = older(name, config, load_file(folder / "model.safetensors"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return config, tensors


@pytest.mark.parametrize("name", ["gpt2", "opt", "gpt_neox", "llama"])
def test_files_of_earlier_versions_are_read(name: str, tmp_path: Path) -> None:
    config, _ = older_folder(name, tmp_path)
    inputs = random_inputs(config, 2, 30)
    with torch.no_grad():
        ours = load(tmp_path)(*inputs)
        assert torch.equal(ours, random_model(config, 1)(*inputs))
        if name == "gpt2":  # the one whose older names transformers reads without notice
            foreign = AUTO["decoder"].from_pretrained(tmp_path).eval()
            torch.testing.assert_close(logits_of(foreign, inputs), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "tensor", "changed", "message"),
    [
        ("gpt2", "h.1.attn.bias", causal(99), "has shape"),
        ("gpt2", "h.1.attn.bias", torch.ones_like, "attn.bias are not supported; ones on and below the diagonal are"),
        ("gpt2", "h.0.attn.bias", lambda mask: mask.mT.contiguous(), "ones on and below the diagonal"),
        ("gpt2", "h.0.attn.bias", lambda mask: mask * 2, "ones on and below the diagonal"),
        ("gpt2", "h.0.attn.masked_bias", torch.zeros_like, "masked_bias are not supported; a number below"),
        ("gpt2", "h.0.attn.bias2", torch.zeros(3), "bias2 is left over"),
        ("gpt2", "transformer.wte.weight", torch.zeros(3), "wte.weight is left over"),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias", torch.ones_like, "ones on and below the diagonal"),
        ("gpt_neox", "gpt_neox.layers.1.attention.rotary_emb.inv_freq", lambda w: w / 2, "the frequencies of the"),
        ("llama", "model.layers.1.self_attn.rotary_emb.inv_freq", lambda w: w * torch.nan, "the frequencies of the"),
        ("llama", "model.layers.1.self_attn.rotary_emb.inv_freq", torch.ones(40), "has shape"),
    ],
)
def test_buffers_must_say_what_we_compute(name: str, tensor: str, changed: Any, message: str, tmp_path: Path) -> None:
    _, tensors = older_folder(name, tmp_path)
    tensors[tensor] = changed(tensors[tensor]) if callable(changed) else changed
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_rows_that_nobody_reads_are_left_behind(tmp_path: Path) -> None:
    model = random_model(random_config("opt", 0), 0)
    save_as("opt", tmp_path, model, SpecialTokens(END))
    tensors = load_file(tmp_path / "model.safetensors")
    table = tensors["model.decoder.embed_positions.weight"]
    assert table.shape[0] == model.config.block_size + 2
    assert not table[:2].any()
    table[:2] = 5.0
    save_file(tensors, tmp_path / "model.safetensors")
    inputs = random_inputs(model.config, 2, 30)
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(*inputs), model(*inputs))
