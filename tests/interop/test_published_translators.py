"""Encoders and translators as published: keys of other times, other names, and tensors that nobody reads."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import END, logits_of, opened, random_config, random_inputs, random_model, transformers
from safetensors.torch import load_file, save_file

from clearhead.errors import DataError
from clearhead.interop import FAMILIES, SpecialTokens, links, load, save
from clearhead.interop.hf.key_map import copies
from clearhead.reference import weight_shapes

# What their first files say, with keys that mean nothing here, how many numbers are learned, and some of our options.
PUBLISHED: dict[str, tuple[dict[str, Any], int, dict[str, object]]] = {
    "bert-base-uncased": (
        {
            "architectures": ["BertForPreTraining"], "attention_probs_dropout_prob": 0.1,
            "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
            "hidden_size": 768, "intermediate_size": 3072,
            "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
            "num_hidden_layers": 12, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522,
        },
        109_514_298,
        {"n_token_types": 2, "norm_eps": 1e-12, "dropout": 0.1, "head_transform": True, "block_size": 512},
    ),
    "opus-mt-en-de": (
        {
            "activation_function": "swish", "add_bias_logits": False, "bad_words_ids": [[58100]], "bos_token_id": 0,
            "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layers": 6,
            "decoder_start_token_id": 58100, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layers": 6,
            "eos_token_id": 0, "is_encoder_decoder": True, "max_position_embeddings": 512, "model_type": "marian",
            "normalize_before": False, "num_beams": 6, "pad_token_id": 58100, "scale_embedding": True,
            "static_position_embeddings": True, "vocab_size": 58101,
        },
        74_410_496 - 2 * 512 * 512,  # the two tables of waves
        {"feedforward": "silu", "decoder_start_id": 58100, "pad_id": 58100}
        | {"scale_embedding": True, "positions": "sinusoidal"},
    ),
    "pegasus-xsum": (
        {
            "activation_function": "relu", "add_final_layer_norm": True, "bos_token_id": 0, "d_model": 1024,
            "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "decoder_layers": 16,
            "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "encoder_layers": 16, "eos_token_id": 1,
            "is_encoder_decoder": True, "max_position_embeddings": 512, "model_type": "pegasus",
            "normalize_before": True, "pad_token_id": 0, "scale_embedding": True, "vocab_size": 96103,
        },
        569_748_480 - 2 * 512 * 1024,
        {"feedforward": "relu", "decoder_start_id": 0, "pad_id": 0, "norm_position": "pre", "head_bias": True},
    ),
    "bart-large-cnn": (
        {
            "activation_function": "gelu", "bos_token_id": 0, "classif_dropout": 0.0, "d_model": 1024,
            "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "decoder_layers": 12, "decoder_start_token_id": 2,
            "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "encoder_layers": 12, "eos_token_id": 2,
            "forced_bos_token_id": 0, "max_position_embeddings": 1024, "model_type": "bart",
            "normalize_embedding": True, "pad_token_id": 1, "scale_embedding": False, "vocab_size": 50264,
        },
        406_290_432 - 2 * 2 * 1024,  # the rows of positions that nobody reads
        {"feedforward": "gelu", "decoder_start_id": None, "pad_id": 1, "embedding_norm": True, "positions": "learned"},
    ),
    "t5-small": (
        {
            "d_ff": 2048, "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1,
            "eos_token_id": 1, "initializer_factor": 1.0, "layer_norm_epsilon": 1e-06, "model_type": "t5",
            "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True, "pad_token_id": 0,
            "relative_attention_num_buckets": 32, "vocab_size": 32128,
        },
        60_506_624,
        {"n_layers": 6, "n_encoder_layers": 6, "feedforward": "relu", "tie_embeddings": True}
        | {"scale_logits": True, "decoder_start_id": 0},
    ),
    "t5-v1_1-small": (
        {
            "d_ff": 1024, "d_kv": 64, "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1,
            "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-06, "model_type": "t5",
            "num_decoder_layers": 8, "num_heads": 6, "num_layers": 8, "pad_token_id": 0, "tie_word_embeddings": False,
            "vocab_size": 32128,
        },
        76_961_152,
        {"feedforward": "geglu", "tie_embeddings": False, "scale_logits": False, "head_dim": 64}
        | {"attention_dropout": 0.1, "feedforward_dropout": 0.1, "block_size": 512},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "numbers", "options"), PUBLISHED.values(), ids=PUBLISHED)
def test_a_config_as_published_is_read(settings: dict[str, Any], numbers: int, options: dict[str, object]) -> None:
    family = FAMILIES[settings["model_type"]]
    for version in (
        settings,
        transformers.AutoConfig.for_model(**settings).to_dict(),
    ):  # as published, as now
        config = family.own_config(version)
        assert {option: getattr(config, option) for option in options} == options
        assert family.own_config(version | family.foreign_config(config)) == config
    learned = {name: math.prod(shape) for name, shape in weight_shapes(config).items()}
    fixed = learned["lm_head.bias"] if family.translates and config.head_bias else 0  # they count it as a buffer
    assert sum(learned.values()) - fixed == numbers


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_embedding_may_be_there_under_its_other_names(name: str, tmp_path: Path) -> None:
    model = random_model(random_config(name, 0), 0)
    save(tmp_path, model, SpecialTokens(END))
    path, inputs = tmp_path / "model.safetensors", random_inputs(model.config, 2, 30)
    whole = load_file(path)
    family = FAMILIES[name]
    for copy, original in copies(family, links(family, model.config)).items():
        same = whole[original].clone()
        rest = {other: tensor for other, tensor in whole.items() if other != original}
        for either in ({original: same, copy: same.clone()}, {copy: same}):
            save_file(rest | either, path)
            with torch.no_grad():
                assert torch.equal(load(tmp_path)(*inputs), model(*inputs))
        save_file({**whole, copy: same + 1e-6}, path)
        with pytest.raises(DataError, match=f"{copy} differs from {original}"):
            load(tmp_path)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in ("bert", "marian", "t5") for kind in FAMILIES[name].activations]
)
def test_every_activation_under_all_its_names(name: str, kind: str, tmp_path: Path) -> None:
    family, config = FAMILIES[name], random_config(name, 0).model_copy(update={"feedforward": kind})
    model, inputs = random_model(config, 0), random_inputs(config, 2, 30)
    save(tmp_path, model, SpecialTokens(END))
    path, names = tmp_path / "config.json", family.activations[kind]
    settings = json.loads(path.read_text(encoding="utf-8"))
    for foreign in (names,) if isinstance(names, str) else names:
        path.write_text(json.dumps(settings | {family.activation_key: foreign}), encoding="utf-8")
        with torch.no_grad():
            expected = logits_of(opened(tmp_path, config.architecture), inputs)
            torch.testing.assert_close(model(*inputs), expected, rtol=0, atol=1e-5)
            assert torch.equal(load(tmp_path)(*inputs), model(*inputs))


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.prefix])
def test_names_may_lack_their_beginning(name: str, tmp_path: Path) -> None:
    model = random_model(random_config(name, 0), 0)
    save(tmp_path, model, SpecialTokens(END))
    path, inputs = tmp_path / "model.safetensors", random_inputs(model.config, 2, 30)
    whole = load_file(path)
    save_file({key.removeprefix(FAMILIES[name].prefix): tensor for key, tensor in whole.items()}, path)
    assert load_file(path).keys() != whole.keys()
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(*inputs), model(*inputs))


@pytest.mark.parametrize("feedforward", ["relu", "geglu"])
def test_a_leftover_of_t5_is_not_read(feedforward: str, tmp_path: Path) -> None:
    config = random_config("t5", 0).model_copy(
        update={"feedforward": feedforward, "scale_logits": False, "tie_embeddings": False}
    )
    model = random_model(config, 0)
    save(tmp_path, model, SpecialTokens(END))
    path, inputs = tmp_path / "model.safetensors", random_inputs(config, 2, 30)
    whole = load_file(path)
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    save_file({**whole, name: torch.ones(config.relative_buckets, config.n_heads)}, path)
    with torch.no_grad():
        assert torch.equal(load(tmp_path)(*inputs), model(*inputs))
    save_file({**whole, name.replace("block.0", "block.1"): torch.ones(2, 2)}, path)
    with pytest.raises(DataError, match=r"block\.1\.layer\.1\.EncDecAttention\.\S+ is left over"):
        load(tmp_path)


@pytest.mark.parametrize("distance", [6, 20])
def test_t5_beyond_its_last_class_of_distance(distance: int, tmp_path: Path) -> None:
    """More tokens than the distances that the biases tell apart."""
    config = random_config("t5", 1).model_copy(update={"relative_max_distance": distance, "block_size": 60})
    model = random_model(config, 1)
    save(tmp_path, model, SpecialTokens(END))
    inputs = random_inputs(config, 2, 60)
    with torch.no_grad():
        expected = logits_of(opened(tmp_path, "encoder_decoder"), inputs)
        torch.testing.assert_close(model(*inputs), expected, rtol=0, atol=1e-5)
