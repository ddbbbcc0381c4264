"""Folders: what is written is read, what is damaged or hostile is refused in one sentence that names every fault."""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import ClearheadError, DataError
from clearhead.interop import SpecialTokens, load, read_config, save, shapes
from clearhead.interop.hf import folder as folder_module
from clearhead.models import MODELS, build_model

GPT2 = ModelConfig(vocab_size=20, block_size=12, n_layers=2, n_heads=2, d_model=8)
LLAMA = GPT2.model_copy(update={"norm": "rmsnorm", "positions": "rope", "feedforward": "swiglu"})
OWN = GPT2.model_copy(update={"positions": "alibi", "norm_position": "post", "n_kv_heads": 1})
BIGRAM = ModelConfig(architecture="bigram", vocab_size=20)
SINUSOIDAL = GPT2.model_copy(update={"positions": "sinusoidal"})
ENCODER = LLAMA.model_copy(update={"architecture": "encoder", "pad_id": 19, "qk_norm": True})
PEGASUS = SINUSOIDAL.model_copy(
    update={"architecture": "encoder_decoder", "n_encoder_layers": 1, "pad_id": 19, "bias": True}
)
MARIAN = PEGASUS.model_copy(update={"norm_position": "post", "bias": False, "init": "xavier"})
TRANSLATOR = PEGASUS.model_copy(update={"positions": "rope", "source_vocab_size": 30, "tie_embeddings": False})
ALL = [GPT2, LLAMA, OWN, BIGRAM, SINUSOIDAL, ENCODER, PEGASUS, MARIAN, TRANSLATOR]
WITHOUT_A_FAMILY = [OWN, BIGRAM, SINUSOIDAL, ENCODER, TRANSLATOR]
WEIGHTS = "model.safetensors"


def saved(folder: Path, config: ModelConfig = GPT2) -> Path:
    save(folder, build_model(config, seed=4), SpecialTokens(end=0))
    return folder


def refusal(folder: Path, config: ModelConfig | None = None) -> str:
    with pytest.raises(DataError) as error:
        load(folder, config=config)
    message = str(error.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


def change_config(folder: Path, **changed: object) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(settings | changed), encoding="utf-8")


def change_weights(folder: Path, changed: dict[str, Tensor | None]) -> None:
    tensors: dict[str, Tensor | None] = {**load_file(folder / WEIGHTS), **changed}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / WEIGHTS)


@pytest.mark.parametrize("config", ALL)
def test_what_was_saved_is_loaded(config: ModelConfig, tmp_path: Path) -> None:
    saved(tmp_path, config)
    state = build_model(config, seed=4).state_dict()
    for back in (load(tmp_path, config=config), load(tmp_path)):
        assert {name for name, tensor in back.state_dict().items() if tensor.any()} <= set(state)
        assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in state.items())
    assert load(tmp_path, config=config).config == config


@pytest.mark.parametrize("config", WITHOUT_A_FAMILY)
def test_without_a_family_the_reason_is_written(config: ModelConfig, tmp_path: Path) -> None:
    settings = json.loads((saved(tmp_path, config) / "config.json").read_text(encoding="utf-8"))
    assert settings["model_type"] == "clearhead"
    option = settings["no_family_because"].split(" ")[0]
    assert settings[option] == getattr(config, option)
    assert read_config(tmp_path) == (None, config)


@pytest.mark.parametrize("end", [None, 7])
def test_the_end_of_a_document_is_told(end: int | None, tmp_path: Path) -> None:
    save(tmp_path, build_model(GPT2), SpecialTokens(end=end))
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((tmp_path / name).read_text(encoding="utf-8"))
        assert settings["eos_token_id"] == settings["bos_token_id"] == end


def test_every_differing_weight_is_listed(tmp_path: Path) -> None:
    weight = torch.zeros(3, 3)
    changed: dict[str, Tensor | None] = {
        "transformer.h.0.ln_1.weight": None,
        "transformer.ln_f.bias": None,
        "transformer.h.7.ln_1.weight": weight,
        "transformer.h.1.mlp.c_fc.weight": weight.clone(),
    }
    change_weights(saved(tmp_path), changed)
    message = refusal(tmp_path)
    assert "transformer.h.0.ln_1.weight is missing" in message
    assert "transformer.ln_f.bias is missing" in message
    assert "transformer.h.7.ln_1.weight is left over" in message
    assert "transformer.h.1.mlp.c_fc.weight has shape [3, 3] instead of [8, 32]" in message


@pytest.mark.parametrize("config", ALL)
def test_no_single_key_can_be_lost_renamed_or_reshaped(config: ModelConfig, tmp_path: Path) -> None:
    whole = load_file(saved(tmp_path, config.model_copy(update={"n_layers": 1})) / WEIGHTS)
    for name, tensor in whole.items():
        if name.endswith("embed_positions.weight") or name == "final_logits_bias":
            continue  # may be lost: nobody learned them
        rest = {other: t for other, t in whole.items() if other != name}
        for wrong in ({}, {f"{name}_": tensor}, {name: tensor[:-1].contiguous()}):
            save_file(rest | wrong, tmp_path / WEIGHTS)
            assert name in refusal(tmp_path) or "too small for" in refusal(tmp_path)
        save_file(rest | {name: tensor.int()}, tmp_path / WEIGHTS)
        assert "numbers of type I32" in refusal(tmp_path)


@pytest.mark.parametrize("family", [GPT2, LLAMA])
def test_a_tied_head_may_be_in_the_file_but_not_differ(family: ModelConfig, tmp_path: Path) -> None:
    saved(tmp_path, family)
    embedding = build_model(family, seed=4).state_dict()["embedding.weight"]
    change_weights(tmp_path, {"lm_head.weight": embedding})
    load(tmp_path)
    change_weights(tmp_path, {"lm_head.weight": embedding + 1e-6})
    assert "lm_head.weight differs from " in refusal(tmp_path)
    change_weights(tmp_path, {"lm_head.weight": embedding[1:].contiguous()})
    assert "lm_head.weight has shape [19, 8] instead of [20, 8]" in refusal(tmp_path)


def test_a_bias_that_the_model_lacks_must_be_zero(tmp_path: Path) -> None:
    name = "transformer.h.1.attn.c_attn.bias"
    change_weights(saved(tmp_path), {name: torch.eye(24)[3]})
    assert f"{name} is not zero, but the model has no stack.blocks.1.self_attention" in refusal(tmp_path, GPT2)
    assert load(tmp_path).config.bias  # as it stands, it is a model with biases


@pytest.mark.parametrize(
    ("saved_as", "known_as"),
    [
        (GPT2, LLAMA),
        (LLAMA, GPT2),
        (OWN, GPT2),
        (GPT2, BIGRAM),
        (LLAMA, ENCODER),
        (PEGASUS, SINUSOIDAL),
        (PEGASUS, MARIAN),
        (PEGASUS, TRANSLATOR),
        (PEGASUS, PEGASUS.model_copy(update={"scale_embedding": True})),
        (PEGASUS, PEGASUS.model_copy(update={"n_encoder_layers": 2})),
        (PEGASUS, PEGASUS.model_copy(update={"pad_id": None})),
        (ENCODER, ENCODER.model_copy(update={"pad_id": 3})),
    ],
)
def test_another_architecture_is_refused(saved_as: ModelConfig, known_as: ModelConfig, tmp_path: Path) -> None:
    assert "the run's options say" in refusal(saved(tmp_path, saved_as), known_as)


@pytest.mark.parametrize("option", [{"n_heads": 4, "n_kv_heads": 4}, {"norm_eps": 1e-3}, {"feedforward": "relu"}])
def test_options_that_no_shape_betrays_are_compared(option: dict[str, Any], tmp_path: Path) -> None:
    message = refusal(saved(tmp_path), GPT2.model_copy(update=option))
    assert next(iter(option)) in message
    load(tmp_path, config=GPT2.model_copy(update={"dropout": 0.3}))  # no part of the architecture


@pytest.mark.parametrize("config", ALL)
def test_options_that_change_no_number_are_not_compared(config: ModelConfig, tmp_path: Path) -> None:
    """An option is overlooked if and only if another value gives the same logits from the same weights."""
    whole = load(saved(tmp_path, config), config=config)
    ids = torch.tensor([[2, 5, 2, 7]])
    inputs = (ids, ids) if config.architecture == "encoder_decoder" else (ids,)
    others = {"init": "xavier", "dropout": 0.5, "n_encoder_layers": 7, "pad_id": 2, "source_vocab_size": 25}
    for option, value in others.items():
        other = config.model_copy(update={option: value})
        changed = build_model(other).eval()
        try:
            changed.load_state_dict(whole.state_dict())
            is_same = torch.equal(changed(*inputs), whole(*inputs))
        except RuntimeError:  # of other shapes
            is_same = False
        if is_same:
            assert load(tmp_path, config=other).config == other
        else:
            assert f"says {option} = " in refusal(tmp_path, other)


@pytest.mark.parametrize("positions", get_args(ModelConfig.model_fields["positions"].annotation))
def test_the_base_is_compared_where_it_changes_what_is_computed(positions: str, tmp_path: Path) -> None:
    config = OWN.model_copy(update={"positions": positions})
    other = config.model_copy(update={"rope_theta": 500.0})
    ids = torch.arange(12)[None]
    if torch.equal(build_model(config, seed=4)(ids), build_model(other, seed=4)(ids)):
        load(saved(tmp_path, config), config=other)
    else:
        assert "says rope_theta = 10000.0, the run's options say 500.0" in refusal(saved(tmp_path, config), other)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, 2000, -1])
def test_a_truncated_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = saved(tmp_path) / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    assert "cannot be read as safetensors" in refusal(tmp_path)


class Bomb:
    """Unpickling it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", WEIGHTS])
def test_a_pickle_is_refused_and_not_run(name: str, tmp_path: Path) -> None:
    (saved(tmp_path) / WEIGHTS).unlink()
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    assert name in refusal(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_every_architecture_has_its_limits() -> None:
    assert set(shapes.LARGEST) == set(MODELS)


@pytest.mark.parametrize("config", ALL)
def test_sizes_that_the_file_does_not_bear_out_take_no_memory(config: ModelConfig, tmp_path: Path) -> None:
    saved(tmp_path, config)
    before = (tmp_path / "config.json").read_text(encoding="utf-8")
    names = json.loads(before)
    sizes = {
        "vocab_size", "n_layer", "n_head", "n_embd", "n_inner", "num_hidden_layers", "hidden_size", "n_positions",
        "intermediate_size", "n_layers", "n_heads", "d_model", "d_ff", "encoder_layers", "decoder_layers",
        "encoder_ffn_dim", "max_position_embeddings",
    }  # fmt: skip
    if config.architecture == "encoder_decoder":
        sizes |= {"n_encoder_layers", "source_vocab_size"}
    else:
        sizes.discard("max_position_embeddings")  # rotary positions take no memory
    if config.positions == "sinusoidal":
        sizes.add("block_size")
    for key in sizes & set(names):
        if config.architecture == "bigram" and key != "vocab_size":
            continue  # a table of pairs has no other size
        pairs = [("encoder_", "decoder_"), ("decoder_", "encoder_")] if key.endswith("_ffn_dim") else []
        both = {key: 2**40} | {key.replace(a, b): 2**40 for a, b in pairs}  # one width for both stacks
        change_config(tmp_path, **both)  # a number per unit would not fit in any machine
        assert refusal(tmp_path)
        (tmp_path / "config.json").write_text(before, encoding="utf-8")
    assert load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[]", "holds no JSON object"),
        ('{"\xff": 1}', "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        (" " * 2**21, "at most 1,048,576 are read"),
        ("{}", "model_type None"),
        ('{"model_type": "elmo"}', "model_type 'elmo'; this version reads bart"),
        ('{"model_type": ["gpt2"]}', "model_type ['gpt2']"),
        ('{"model_type": "llama"}', "vocab_size is missing"),
        ('{"model_type": "clearhead", "d_modle": 3}', "unknown option 'd_modle'; did you mean 'd_model'?"),
        ('{"model_type": "clearhead", "vocab_size": "many"}', "vocab_size"),
    ],
)
def test_a_config_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (saved(tmp_path) / "config.json").write_bytes(text.encode("latin-1"))
    assert message in refusal(tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / WEIGHTS).unlink()
    assert f"there is no {WEIGHTS}" in refusal(tmp_path)
    (tmp_path / "config.json").unlink()
    assert "there is no config.json" in refusal(tmp_path)
    assert "there is no config.json" in refusal(tmp_path / "nowhere")


def test_a_failed_save_leaves_the_old_model_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def no_space(path: Path, tensors: object, metadata: dict[str, str]) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "write_tensors", no_space)
    with pytest.raises(ClearheadError, match="No space left"):
        save(tmp_path, build_model(LLAMA), SpecialTokens(end=0))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_the_files_can_be_read_by_whoever_reads_others(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    saved(tmp_path)
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1
