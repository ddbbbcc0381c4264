"""Families of encoders: padding, segments, and what files of other tasks and other years hold beside the weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from family_models import ENCODERS, SEEDS, opened, random_config, random_ids, random_model
from safetensors.torch import load_file, save_file

from clearhead.config import ModelConfig
from clearhead.config.presets import PRESETS
from clearhead.errors import DataError
from clearhead.interop import load, obstacle, save
from clearhead.models import EncoderLM
from clearhead.parts import positions_from_lengths

Case = tuple[EncoderLM, Path]


@pytest.fixture(params=[(name, seed) for name in ENCODERS for seed in SEEDS], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    name, seed = request.param
    model = random_model(random_config(name, seed), seed)
    assert isinstance(model, EncoderLM)
    save(tmp_path, model)
    with torch.no_grad():
        yield model, tmp_path


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(side: str, case: Case) -> None:
    model, folder = case
    assert side in ("left", "right")
    positions = positions_from_lengths(torch.tensor([20, 13, 1]), 20, "left" if side == "left" else "right")
    real = positions >= 0
    assert model.config.pad_id is not None
    ids = random_ids(model.config, 3, 20).masked_fill(~real, model.config.pad_id)
    foreign = opened(folder, "encoder")
    expected = foreign(ids, attention_mask=real.long(), position_ids=positions.clamp(min=0)).logits
    torch.testing.assert_close(model(ids)[real], expected[real], rtol=0, atol=1e-5)


def test_segments_are_token_types(case: Case) -> None:
    model, folder = case
    ids, foreign = random_ids(model.config, 2, 16), opened(folder, "encoder")
    token_type_ids = random_ids(model.config, 2, 16, seed=9) % model.config.n_token_types
    ours = model(ids, token_type_ids=token_type_ids)
    torch.testing.assert_close(ours, foreign(ids, token_type_ids=token_type_ids).logits, rtol=0, atol=1e-5)
    assert not token_type_ids.any() or not torch.allclose(ours, model(ids), atol=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_file_as_published_is_read(seed: int, tmp_path: Path) -> None:
    """With the old names of norms, the heads of other tasks, a list of places, and the bias under its second name."""
    model = random_model(random_config("bert", seed), seed)
    D, block_size = model.config.d_model, model.config.block_size
    save(tmp_path, model)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in whole.items()
    }
    assert len(old.keys() - whole.keys()) == 2 * (2 + 2 * model.config.n_layers)
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["bert.pooler.dense.weight"], old["bert.pooler.dense.bias"] = torch.ones(D, D), torch.ones(D)
    old["cls.seq_relationship.weight"], old["cls.seq_relationship.bias"] = torch.ones(2, D), torch.ones(2)
    old["bert.embeddings.position_ids"] = torch.arange(block_size)[None]
    save_file(old, path)
    back, ids = load(tmp_path), random_ids(model.config, 2, 30)
    with torch.no_grad():
        assert torch.equal(back(ids), model(ids))
        expected = opened_with_leftovers(tmp_path)(ids).logits
        torch.testing.assert_close(back(ids), expected, rtol=0, atol=1e-5)
    save_file({**old, "cls.predictions.bias": old["cls.predictions.decoder.bias"] + 1}, path)
    with pytest.raises(DataError, match=r"cls\.predictions\.decoder\.bias differs from cls\.predictions\.bias"):
        load(tmp_path)
    twice = {**old, "bert.embeddings.LayerNorm.weight": torch.ones(D)}
    save_file(twice, path)
    with pytest.raises(DataError, match=r"bert\.embeddings\.LayerNorm\.\w+ is left over"):
        load(tmp_path)


def opened_with_leftovers(folder: Path) -> torch.nn.Module:
    """As transformers reads it, which leaves out the heads of other tasks too."""
    import transformers

    foreign, loading_info = transformers.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not loading_info["missing_keys"]
    assert not loading_info["mismatched_keys"]
    model: torch.nn.Module = foreign.eval()
    return model


def test_the_preset_says_what_keeps_it_from_being_bert() -> None:
    reasons = obstacle(ModelConfig.read(PRESETS["masked"].model)) or ""
    assert reasons.startswith("parallel_residual") is False
    assert "norm = 'rmsnorm' (bert has 'layernorm')" in reasons
