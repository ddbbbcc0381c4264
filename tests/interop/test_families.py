"""Every family, on random tiny models: our numbers are transformers' numbers, both ways, padded and generating."""

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from family_models import (
    DECODERS,
    END,
    SEEDS,
    logits_of,
    opened,
    random_config,
    random_foreign,
    random_ids,
    random_inputs,
    random_model,
    save_as,
)
from model_options import listed_choices
from safetensors.torch import load_file
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.interop import (
    FAMILIES,
    Family,
    SpecialTokens,
    family_of,
    links,
    load,
    obstacle,
    read_config,
    to_foreign,
    to_own,
)
from clearhead.interop.hf.key_map import names_in_file
from clearhead.models import LanguageModel
from clearhead.parts import positions_from_lengths

Case = tuple[LanguageModel, Path]


@pytest.fixture
def case(name: str, seed: int, tmp_path: Path) -> Iterator[Case]:
    model = random_model(random_config(name, seed), seed)
    save_as(name, tmp_path, model, SpecialTokens(END))
    with torch.no_grad():
        yield model, tmp_path


def every(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in names for seed in SEEDS])


@pytest.mark.sampled
@every(FAMILIES)
def test_logits_are_those_of_transformers(case: Case) -> None:
    model, folder = case
    inputs = random_inputs(model.config, 3, 30)
    expected, logits = logits_of(opened(folder, model.config.architecture), inputs), model(*inputs)
    assert logits.std() > 0.1  # the comparison is of something
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.sampled
@every(DECODERS)
def test_padding_on_either_side_changes_nothing(case: Case) -> None:
    model, folder = case
    foreign = opened(folder, "decoder")
    ids, lengths = random_ids(model.config, 3, 20), torch.tensor([20, 13, 1])
    for side in ("left", "right"):
        positions = positions_from_lengths(lengths, 20, side)
        real = positions >= 0
        expected = foreign(ids, attention_mask=real.long(), position_ids=positions.clamp(min=0)).logits
        logits = model(ids, positions=positions)
        torch.testing.assert_close(logits[real], expected[real], rtol=0, atol=1e-5)


@pytest.mark.sampled
@every(DECODERS)
def test_twenty_greedy_tokens_are_equal(case: Case) -> None:
    model, folder = case
    foreign = opened(folder, "decoder")
    foreign.generation_config.eos_token_id = None  # no early end
    prompt = random_ids(model.config, 2, 12)
    expected = foreign.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    tokens = prompt
    for _ in range(20):
        tokens = torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(tokens, expected)


@pytest.mark.sampled
@every(FAMILIES)
def test_there_and_back_is_bit_identical(name: str, case: Case) -> None:
    model, folder = case
    state = model.state_dict()
    for back in (load(folder, config=model.config), load(folder)):
        for weight, tensor in back.state_dict().items():
            assert torch.equal(tensor, state.get(weight, torch.zeros_like(tensor))), weight
    written = (folder / "model.safetensors").read_bytes()
    save_as(name, folder / "again", load(folder), SpecialTokens(END))
    assert (folder / "again" / "model.safetensors").read_bytes() == written


@pytest.mark.sampled
@every(FAMILIES)
def test_in_float64_too(name: str, seed: int, tmp_path: Path) -> None:
    model = random_model(random_config(name, seed), seed).double()
    save_as(name, tmp_path, model, SpecialTokens(END))
    inputs = random_inputs(model.config, 2, 30)
    foreign = opened(tmp_path, model.config.architecture)
    assert foreign.dtype == torch.float64
    # Their RMSNorm and rotary angles are float32 whatever the model's type.
    tolerance = 1e-12 if model.config.norm == "layernorm" and model.config.positions != "rope" else 1e-5
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), logits_of(foreign, inputs), rtol=0, atol=tolerance)
        assert torch.equal(load(tmp_path)(*inputs), model(*inputs))


@pytest.mark.sampled
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_that_transformers_wrote_is_read(name: str, tied: bool, tmp_path: Path) -> None:
    if FAMILIES[name].needs.get("tie_embeddings", tied) != tied:
        return  # the family has no such models
    config = random_config(name, 9).model_copy(update={"tie_embeddings": tied})
    if FAMILIES[name].options.get("scale_logits") == "tie_word_embeddings":
        config = config.model_copy(update={"scale_logits": tied})
    foreign = random_foreign(name, config)
    foreign.save_pretrained(tmp_path)
    family, read = read_config(tmp_path)
    assert family is FAMILIES[name]
    for option in type(read).model_fields:
        if "dropout" not in option and option not in {"bias", "qkv_bias", "head_bias", "rope_theta"}:
            assert getattr(read, option) == getattr(config, option), option
    assert read.rope_theta == config.rope_theta or read.positions != "rope"
    inputs = random_inputs(read, 2, 30)
    with torch.no_grad():
        # Tables of waves are float64's in theirs and float32's in ours.
        torch.testing.assert_close(load(tmp_path)(*inputs), logits_of(foreign, inputs), rtol=0, atol=2e-5)
    tensors, state, table = load_file(tmp_path / "model.safetensors"), load(tmp_path).state_dict(), links(family, read)
    for link in table:
        written = tensors[names_in_file(family, table, tensors)[link.foreign]]
        assert torch.equal(to_foreign(link, state)[link.unread_rows :], written[link.unread_rows :])


@pytest.mark.sampled
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_table_is_its_own_reverse(family: Family, seed: int) -> None:
    config = random_config(family.name, seed)
    state = random_model(config, seed).state_dict()
    own_weights: dict[str, Tensor] = {}
    for link in links(family, config):
        foreign = to_foreign(link, state)
        assert tuple(foreign.shape) == link.foreign_shape
        own_weights |= to_own(link, foreign)
    assert all(torch.equal(own_weights.pop(name), tensor) for name, tensor in state.items())
    assert not any(tensor.any() for tensor in own_weights.values())  # biases that only the family has


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(200))
def test_a_config_has_a_family_or_an_obstacle(seed: int) -> None:
    draw, listed = random.Random(seed), listed_choices()
    config = ModelConfig.read(
        {
            "norm": draw.choice(listed["norm"]),
            "norm_position": draw.choice(["pre", "pre", "post"]),
            "feedforward": draw.choice(listed["feedforward"]),
            "positions": draw.choice(listed["positions"]),
            "qk_norm": draw.random() < 0.3,
            "partial_rotary_factor": draw.choice([1.0, 0.5]),
            "bias": draw.random() < 0.5,
            "n_kv_heads": draw.choice([1, 4]),
            "sliding_window": draw.choice([None, None, 16]),
            "scale_embedding": draw.random() < 0.2,
            "tie_embeddings": draw.random() < 0.5,
        }
    )
    family, reason = family_of(config), obstacle(config)
    assert (family is None) == (reason is not None)
    if family is not None:
        fraction = (
            {} if config.positions == "rope" else {"partial_rotary_factor": 1.0}
        )  # without rotary positions, not told
        assert family.own_config(family.foreign_config(config)) == family.complete(config).model_copy(update=fraction)


def test_the_obstacle_names_what_stands_in_the_way() -> None:
    llama = {"norm": "rmsnorm", "positions": "rope", "feedforward": "swiglu"}
    assert obstacle(ModelConfig.read(llama)) is None
    assert obstacle(ModelConfig.read(llama, {"norm_position": "post"})) == "norm_position = 'post' (llama has 'pre')"
    assert obstacle(ModelConfig(positions="alibi")) == "positions = 'alibi' (gpt2 has 'learned')"
    assert obstacle(ModelConfig(n_heads=4, n_kv_heads=2)) == "n_kv_heads = 2 (gpt2 has as many as n_heads, 4)"
    translator = {"architecture": "encoder_decoder", "positions": "sinusoidal"}
    assert (
        obstacle(ModelConfig.read(translator))
        == obstacle(ModelConfig.read(translator, {"norm_position": "post"}))
        is None
    )
    own_vocabulary = ModelConfig.read(translator, {"source_vocab_size": 9})
    assert obstacle(own_vocabulary) == "source_vocab_size = 9 (pegasus has none)"
    assert (
        obstacle(ModelConfig.read(translator, {"tie_embeddings": False})) == "tie_embeddings = false (pegasus has true)"
    )
    bert = {"architecture": "encoder", "norm_position": "post", "embedding_norm": True, "head_transform": True}
    assert obstacle(ModelConfig.read(bert, {"n_token_types": 2})) is None
    assert obstacle(ModelConfig.read(bert)) == "n_token_types = 0 (bert has at least 1)"
    t5 = {"positions": "relative", "norm": "rmsnorm", "scale_attention": False, "scale_logits": True}
    t5 = ModelConfig.read(translator, t5).model_dump()
    assert obstacle(ModelConfig.read(t5)) is None
    assert (
        obstacle(ModelConfig.read(t5, {"tie_embeddings": False}))
        == "scale_logits = true (t5 has the same as tie_embeddings)"
    )
    gemma = llama | {"norm": "rmsnorm_plus_one", "feedforward": "geglu"}
    assert obstacle(ModelConfig.read(gemma)) == "scale_embedding = false (gemma has true)"
    parallel = {"parallel_residual": True, "positions": "rope", "feedforward": "swiglu"}
    assert "feedforward = 'swiglu' (gpt_neox has 'gelu' or" in (obstacle(ModelConfig.read(parallel)) or "")
    turned = {
        "parallel_residual": True,
        "positions": "rope",
        "n_heads": 2,
        "d_model": 32,
        "partial_rotary_factor": 0.35,
    }
    assert obstacle(ModelConfig.read(turned)) == (
        "partial_rotary_factor = 0.35 (gpt_neox turns 5 of a head's 16 numbers, not 6)"
    )
    assert obstacle(ModelConfig.read(llama, {"embedding_ngrams": 2})) == "embedding_ngrams = 2 (llama has 1)"
    both = obstacle(ModelConfig.read(llama, {"qk_norm": True, "sliding_window": 8, "n_layers": 2})) or ""
    assert "sliding_window" in both or "qk_norm" in both
