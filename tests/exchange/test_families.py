"""Every family, on random tiny models: our numbers are transformers' numbers, both ways, padded and generating."""

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from family_models import (
    AUTO,
    DECODERS,
    END,
    SEEDS,
    logits_of,
    opened,
    random_config,
    random_ids,
    random_inputs,
    random_model,
    transformers,
)
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.exchange import (
    FAMILIES,
    Family,
    SpecialTokens,
    family_of,
    links,
    load,
    obstacle,
    read_config,
    save,
    to_foreign,
    to_own,
)
from clearhead.exchange.family import BIASED
from clearhead.models import LanguageModel
from clearhead.parts import padded_positions

Case = tuple[LanguageModel, Path]


@pytest.fixture
def case(name: str, seed: int, tmp_path: Path) -> Iterator[Case]:
    model = random_model(random_config(name, seed), seed)
    save(tmp_path, model, SpecialTokens(END))
    with torch.no_grad():
        yield model, tmp_path


def every(names: Iterable[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in names for seed in SEEDS])


@every(FAMILIES)
def test_logits_are_those_of_transformers(case: Case) -> None:
    model, folder = case
    given = random_inputs(model.config, 3, 30)
    theirs, ours = logits_of(opened(folder, model.config.architecture), given), model(*given)
    assert ours.std() > 0.1  # the comparison is of something
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@every(DECODERS)
def test_padding_on_either_side_changes_nothing(case: Case) -> None:
    model, folder = case
    foreign = opened(folder, "decoder")
    ids, lengths = random_ids(model.config, 3, 20), torch.tensor([20, 13, 1])
    for side in ("left", "right"):
        positions = padded_positions(lengths, 20, side)
        real = positions >= 0
        theirs = foreign(ids, attention_mask=real.long(), position_ids=positions.clamp(min=0)).logits
        ours = model(ids, positions=positions)
        torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=1e-5)


@every(DECODERS)
def test_twenty_greedy_tokens_are_equal(case: Case) -> None:
    model, folder = case
    foreign = opened(folder, "decoder")
    foreign.generation_config.eos_token_id = None  # no early end
    prompt = random_ids(model.config, 2, 12)
    theirs = foreign.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    ours = prompt
    for _ in range(20):
        ours = torch.cat((ours, model(ours)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(ours, theirs)


@every(FAMILIES)
def test_there_and_back_is_bit_identical(case: Case) -> None:
    model, folder = case
    state = model.state_dict()
    for back in (load(folder, config=model.config), load(folder)):
        for name, tensor in back.state_dict().items():
            assert torch.equal(tensor, state.get(name, torch.zeros_like(tensor))), name
    written = (folder / "model.safetensors").read_bytes()
    save(folder / "again", load(folder), SpecialTokens(END))
    assert (folder / "again" / "model.safetensors").read_bytes() == written


@every(FAMILIES)
def test_in_float64_too(name: str, seed: int, tmp_path: Path) -> None:
    model = random_model(random_config(name, seed), seed).double()
    save(tmp_path, model, SpecialTokens(END))
    given = random_inputs(model.config, 2, 30)
    foreign = opened(tmp_path, model.config.architecture)
    assert foreign.dtype == torch.float64
    # Their RMSNorm and rotary angles are float32 whatever the model's type.
    tolerance = 1e-12 if FAMILIES[name].needs["norm"] == "layernorm" else 1e-5
    with torch.no_grad():
        torch.testing.assert_close(model(*given), logits_of(foreign, given), rtol=0, atol=tolerance)
        assert torch.equal(load(tmp_path)(*given), model(*given))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_that_transformers_wrote_is_read(name: str, tied: bool, tmp_path: Path) -> None:
    if FAMILIES[name].needs.get("tied", tied) != tied:
        return  # the family has no such models
    config = random_config(name, 9).model_copy(update={"tied": tied})
    told = FAMILIES[name].foreign_config(config) | {"eos_token_id": END}
    if FAMILIES[name].translates:
        told["decoder_start_token_id"] = END
    foreign_config = transformers.AutoConfig.for_model(**{k: v for k, v in told.items() if k != "architectures"})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        foreign = AUTO[config.architecture].from_config(foreign_config).eval()
        for parameter in foreign.parameters():
            if parameter.requires_grad:  # not a table of waves
                torch.nn.init.normal_(parameter, std=0.3)
    foreign.save_pretrained(tmp_path)
    family, read = read_config(tmp_path)
    assert family is FAMILIES[name]
    for option in type(read).model_fields:
        if "dropout" not in option and option not in {"bias", "qkv_bias", "rope_base"}:
            assert getattr(read, option) == getattr(config, option), option
    assert read.rope_base == config.rope_base or read.positions != "rope"
    given = random_inputs(read, 2, 30)
    with torch.no_grad():
        # Tables of waves are float64's in theirs and float32's in ours.
        torch.testing.assert_close(load(tmp_path)(*given), logits_of(foreign, given), rtol=0, atol=2e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_table_is_its_own_reverse(family: Family, seed: int) -> None:
    config = random_config(family.name, seed)
    state = random_model(config, seed).state_dict()
    seen: dict[str, Tensor] = {}
    for link in links(family, config):
        foreign = to_foreign(link, state)
        assert tuple(foreign.shape) == link.foreign_shape
        seen |= to_own(link, foreign)
    assert all(torch.equal(seen.pop(name), tensor) for name, tensor in state.items())
    assert not any(tensor.any() for tensor in seen.values())  # biases that only the family has


HARMLESS = {  # of transformers' config keys: what changes no logit, or has no meaning for the family's causal model
    "initializer_range",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "reorder_and_upcast_attn",  # the type in which scores are computed
    "max_window_layers",  # only with use_sliding_window
    "sliding_window",  # in qwen3 only with use_sliding_window
    "layer_types",  # derived from the two
    "rope_parameters",
    "head_dim",
    "init_std",
    "encoder_layerdrop",  # in training only
    "decoder_layerdrop",
    "decoder_start_token_id",  # compared with eos_token_id
    "forced_eos_token_id",  # at the longest length only
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_foreign_key_is_overlooked(family: Family) -> None:
    default = transformers.AutoConfig.for_model(family.name)
    common = set(transformers.PreTrainedConfig.__dataclass_fields__)
    keys = {key for key in type(default).__dataclass_fields__ if key not in common and not key.startswith("summary_")}
    known = {family.activation_key, *family.constants}
    for foreign in family.options.values():
        known |= {foreign} if isinstance(foreign, str) else set(foreign)
    assert keys - known <= HARMLESS
    for key, value in family.absent.items():
        if value is not None and key in type(default).__dataclass_fields__:
            assert getattr(default, key) == value, key


@pytest.mark.parametrize("seed", range(200))
def test_a_config_has_a_family_or_an_obstacle(seed: int) -> None:
    draw = random.Random(seed)
    config = ModelConfig.read(
        {
            "norm": draw.choice(["layernorm", "rmsnorm"]),
            "norm_place": draw.choice(["pre", "post"]),
            "feedforward": draw.choice(["relu", "gelu", "relu2", "swiglu"]),
            "positions": draw.choice(["learned", "sinusoidal", "rope", "alibi", "none"]),
            "qk_norm": draw.random() < 0.3,
            "bias": draw.random() < 0.5,
            "n_kv_heads": draw.choice([1, 4]),
            "window": draw.choice([None, None, 16]),
            "scale_embedding": draw.random() < 0.2,
            "tied": draw.random() < 0.5,
        }
    )
    family, reason = family_of(config), obstacle(config)
    assert (family is None) == (reason is not None)
    if family is not None:
        assert family.own_config(family.foreign_config(config)) == config.model_copy(
            update=BIASED if family.always_biased else {}
        )


def test_the_obstacle_names_what_stands_in_the_way() -> None:
    llama = {"norm": "rmsnorm", "positions": "rope", "feedforward": "swiglu"}
    assert obstacle(ModelConfig.read(llama)) is None
    assert obstacle(ModelConfig.read(llama, {"norm_place": "post"})) == "norm_place = 'post' (llama has 'pre')"
    assert obstacle(ModelConfig(positions="alibi")) == "positions = 'alibi' (gpt2 has 'learned')"
    assert obstacle(ModelConfig(n_heads=4, n_kv_heads=2)) == "n_kv_heads = 2 (gpt2 has as many as n_heads, 4)"
    translator = {"architecture": "encoder_decoder", "positions": "sinusoidal"}
    assert (
        obstacle(ModelConfig.read(translator)) == obstacle(ModelConfig.read(translator, {"norm_place": "post"})) is None
    )
    own_vocabulary = ModelConfig.read(translator, {"source_vocab_size": 9})
    assert obstacle(own_vocabulary) == "source_vocab_size = 9 (pegasus has none)"
    assert obstacle(ModelConfig.read(translator, {"tied": False})) == "tied = false (pegasus has true)"
    assert obstacle(ModelConfig(architecture="encoder")) == "architecture = 'encoder' (gpt2 has 'decoder')"
    both = obstacle(ModelConfig.read(llama, {"qk_norm": True, "window": 8, "n_layers": 2})) or ""
    assert "window" in both or "qk_norm" in both


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("gpt2", {"activation_function": "quick_gelu"}, "activation_function = 'quick_gelu' has no equal here"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true"),
        ("gpt2", {"embd_pdrop": 0.5, "resid_pdrop": 0.25}, "embd_pdrop = 0.5 and resid_pdrop = 0.25"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rotary positions"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rotary positions"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "rotary positions"),
        ("llama", {"rope_parameters": [1e4]}, "rotary positions"),
        ("llama", {"head_dim": 7}, "choose an even width"),
        ("llama", {"attention_bias": True}, "attention_bias = true and mlp_bias = false"),
        ("arcee", {"hidden_act": "silu"}, "hidden_act = 'silu' has no equal here; 'relu2' or 'relu' or 'gelu' has"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window = true"),
        ("mistral", {"hidden_size": "wide"}, "d_model"),
        ("mistral", {"num_attention_heads": -1}, "n_heads"),
        ("mistral", {"num_hidden_layers": {}}, "n_layers"),
    ],
)
def test_a_foreign_option_without_equal_is_refused(
    name: str, changed: dict[str, object], said: str, tmp_path: Path
) -> None:
    shape = {"n_heads": 2, "n_kv_heads": 2, "d_model": 16, "head_width": 8, "bias": False, "qkv_bias": False}
    config = ModelConfig.read(random_config(name, 0).model_dump(), shape)
    told = FAMILIES[name].foreign_config(config) | changed
    (tmp_path / "config.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(DataError) as refusal:
        read_config(tmp_path)
    assert said in str(refusal.value)
    assert "config.json" in str(refusal.value)


def test_rotary_bases_of_older_files_are_read() -> None:
    config = random_config("llama", 0)
    told = FAMILIES["llama"].foreign_config(config)
    del told["rope_parameters"]
    assert FAMILIES["llama"].own_config({**told, "rope_theta": 777.0}).rope_base == 777.0
    assert FAMILIES["llama"].own_config(told).rope_base == 10_000.0
