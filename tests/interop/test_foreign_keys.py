"""Keys of foreign configs: none is overlooked, those that are called harmless are, those without equal are refused."""

import json
from pathlib import Path

import pytest
import torch
from family_models import (
    END,
    logits_of,
    opened,
    random_config,
    random_inputs,
    random_model,
    save_as,
    transformers,
)

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.interop import FAMILIES, Family, SpecialTokens, load, read_config

# Keys of transformers' configs that change no logit, each with another value than its default.
HARMLESS: dict[str, object] = {
    "initializer_range": 0.5,
    "init_std": 0.5,
    "use_cache": False,
    "bos_token_id": 5,
}
HARMLESS_IN_DECODERS: dict[str, object] = {"eos_token_id": 6, "pad_token_id": 7}
HARMLESS_IN_TRANSLATORS: dict[str, object] = {
    "encoder_layerdrop": 0.5,  # in training only
    "decoder_layerdrop": 0.5,
    "forced_eos_token_id": 3,  # at the longest length only
    "classifier_dropout": 0.5,
    "initializer_factor": 2.0,
}
HARMLESS_IN: dict[str, dict[str, object]] = {
    "gpt2": {"reorder_and_upcast_attn": True},  # the type in which scores are computed
    "opt": {"layerdrop": 0.5},  # in training only
    "gpt_neox": {"classifier_dropout": 0.5, "is_decoder": True},
    "qwen2": {"sliding_window": 2, "max_window_layers": 0},  # only with use_sliding_window
    "qwen3": {"sliding_window": 2, "max_window_layers": 0},
    "bert": {"classifier_dropout": 0.5},
}
# By RotaryKeys; derived from use_sliding_window; decides with the others where a target begins.
READ_ELSEWHERE = {"rope_parameters", "layer_types", "decoder_start_token_id", "eos_token_id"}


def harmless_in(family: Family) -> dict[str, object]:
    """Its keys that change no logit."""
    alike = {"decoder": HARMLESS_IN_DECODERS, "encoder": {}, "encoder_decoder": HARMLESS_IN_TRANSLATORS}
    return HARMLESS | alike[str(family.needs["architecture"])] | HARMLESS_IN.get(family.name, {})


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_foreign_key_is_overlooked(family: Family) -> None:
    default = transformers.AutoConfig.for_model(family.name)
    common = set(transformers.PreTrainedConfig.__dataclass_fields__)
    keys = {key for key in type(default).__dataclass_fields__ if key not in common and not key.startswith("summary_")}
    known = {choice.key for choice in family.named_choices.values()} | set(family.required_settings)
    for foreign in family.options.values():
        known |= {foreign} if isinstance(foreign, str) else set(foreign)
    assert keys - known <= harmless_in(family).keys() | READ_ELSEWHERE
    for key, value in family.absent.items():
        if value is not None and key in type(default).__dataclass_fields__:
            assert getattr(default, key) in (value, None), key
    for key, value in family.required_settings.items():
        if key in type(default).__dataclass_fields__:
            means_ours = getattr(default, key) in (value if isinstance(value, tuple) else (value,))
            assert means_ours or getattr(default, key) == family.absent[key], key  # a file without it is refused too


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_that_are_called_harmless_are(name: str, tmp_path: Path) -> None:
    model = random_model(random_config(name, 1), 1)
    save_as(name, tmp_path, model, SpecialTokens(END))
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | harmless_in(FAMILIES[name])
    path.write_text(json.dumps(settings), encoding="utf-8")
    inputs = random_inputs(model.config, 2, 30)
    with torch.no_grad():
        expected = logits_of(opened(tmp_path, model.config.architecture), inputs)
        torch.testing.assert_close(expected, model(*inputs), rtol=0, atol=1e-5)
        assert torch.equal(load(tmp_path)(*inputs), model(*inputs))


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("gpt2", {"activation_function": "quick_gelu"}, "activation_function = 'quick_gelu' is not supported"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true"),
        ("gpt2", {"embd_pdrop": 0.5, "resid_pdrop": 0.25}, "embd_pdrop = 0.5 and resid_pdrop = 0.25"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rotary positions"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rotary positions"),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor = 0.5 (llama",
        ),
        ("llama", {"rope_parameters": {"rope_theta": "far"}}, "rope_theta"),
        ("llama", {"rope_parameters": {"long_factor": [1.0]}}, "rotary positions with {'long_factor': [1.0]} are"),
        ("llama", {"rope_parameters": [1e4]}, "rotary positions"),
        ("llama", {"head_dim": 7}, "choose an even width"),
        ("opt", {"word_embed_proj_dim": 8}, "hidden_size = 16 and word_embed_proj_dim = 8 are not supported"),
        ("opt", {"do_layer_norm_before": "no"}, "do_layer_norm_before = 'no' is not supported; true or false is"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm = true"),
        ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine = false"),
        ("gpt_neox", {"attention_bias": False}, "attention_bias = false"),
        ("vaultgemma", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0 is not supported; none is"),
        ("vaultgemma", {"sliding_window": 5}, "and sliding_window = 5 are not supported"),
        ("vaultgemma", {"query_pre_attn_scalar": 5}, "and query_pre_attn_scalar = 5 are not supported"),
        (
            "gpt_neox",
            {"rope_parameters": {"partial_rotary_factor": 0.7}},
            "gpt_neox turns 5 of a head's 8 numbers, not 6",
        ),
        ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": [1]}}, "partial_rotary_factor"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window = true"),
        ("gemma", {"hidden_act": "silu"}, "hidden_act = 'silu' is not supported; 'gelu_pytorch_tanh'"),
        ("gemma", {"hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention = true"),
        ("llama", {"attention_bias": True}, "attention_bias = true and mlp_bias = false"),
        ("arcee", {"hidden_act": "silu"}, "hidden_act = 'silu' is not supported; 'relu2' or 'relu' or 'gelu' is"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window = true"),
        ("mistral", {"hidden_size": "wide"}, "d_model"),
        ("mistral", {"num_attention_heads": -1}, "n_heads"),
        ("mistral", {"num_hidden_layers": {}}, "n_layers"),
    ],
)
def test_a_foreign_option_without_equal_is_refused(
    name: str, changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    shape = {"n_heads": 2, "n_kv_heads": 2, "d_model": 16, "head_dim": 8, "bias": False, "partial_rotary_factor": 1.0}
    biases = {"qkv_bias": FAMILIES[name].needs.get("qkv_bias", False)}
    config = ModelConfig.read(random_config(name, 0).model_dump(), shape, biases)
    settings = FAMILIES[name].foreign_config(config) | changed
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(DataError) as refusal:
        read_config(tmp_path)
    assert message in str(refusal.value)
    assert "config.json" in str(refusal.value)


def test_a_window_that_no_layer_has_is_not_read(tmp_path: Path) -> None:
    model = random_model(random_config("vaultgemma", 1), 1)
    save_as("vaultgemma", tmp_path, model, SpecialTokens(END))
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings |= {"sliding_window": 5, "layer_types": ["full_attention"] * model.config.n_layers}
    path.write_text(json.dumps(settings), encoding="utf-8")
    inputs = random_inputs(model.config, 2, 30)
    with torch.no_grad():
        foreign = logits_of(opened(tmp_path, "decoder"), inputs)
        torch.testing.assert_close(load(tmp_path)(*inputs), foreign, rtol=0, atol=1e-5)
