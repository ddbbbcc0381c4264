"""Every family, on random tiny models: our numbers are transformers' numbers, both ways, padded and generating."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import DataError
from clearhead.exchange import FAMILIES, Family, family_of, links, load, obstacle, read_config, save, to_foreign, to_own
from clearhead.models import LanguageModel, build
from clearhead.parts import padded_positions

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers", reason="parity is measured against transformers: pip install it")
transformers.utils.logging.disable_progress_bar()

SEEDS = range(3)
Foreign = Any  # a transformers model


def random_config(family: str, seed: int) -> ModelConfig:
    """A tiny model that fits in the family, every other option drawn."""
    draw = random.Random(f"{family} {seed}")
    grouped, biased = FAMILIES[family].grouped, "bias" not in FAMILIES[family].needs
    n_kv_heads = draw.choice([1, 2])
    n_heads = n_kv_heads * draw.choice([1, 3])
    options: dict[str, Any] = {
        **FAMILIES[family].needs,
        "vocab_size": draw.randint(30, 70),
        "block_size": draw.randint(36, 50),
        "n_layers": draw.randint(1, 3),
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads if grouped else n_heads,
        "d_model": n_heads * 2 * draw.randint(2, 5),
        "d_ff": draw.randint(5, 40),
        "norm_epsilon": draw.choice([1e-6, 1e-5, 1e-3]),
        "feedforward": draw.choice(sorted(FAMILIES[family].activations)),
        "rope_base": draw.choice([100.0, 10_000.0]),
        "tied": draw.random() < 0.5,
        "dropout": draw.choice([0.0, 0.1]),
    }
    if biased:
        options["bias"] = draw.random() < 0.5
    if family == "mistral":
        options["window"] = draw.randint(1, 12)
    return ModelConfig.read(options)


def random_model(config: ModelConfig, seed: int) -> LanguageModel:
    """No weight keeps its initial value, so that one that is lost, swapped or left alone is seen."""
    model = build(config, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def random_ids(config: ModelConfig, rows: int, columns: int) -> Tensor:
    return torch.randint(config.vocab_size, (rows, columns), generator=torch.Generator().manual_seed(5))


def opened(folder: Path) -> Foreign:
    """The folder as transformers opens it, with no key missing, left over or mismatched."""
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    return model.eval()


@pytest.fixture(params=[(name, seed) for name in FAMILIES for seed in SEEDS], ids=lambda p: f"{p[0]}-{p[1]}")
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LanguageModel, Path]]:
    name, seed = request.param
    model = random_model(random_config(name, seed), seed)
    save(tmp_path, model, end_of_document=2)
    with torch.no_grad():
        yield model, tmp_path


def test_logits_are_those_of_transformers(case: tuple[LanguageModel, Path]) -> None:
    model, folder = case
    ids = random_ids(model.config, 3, 30)
    theirs, ours = opened(folder)(ids).logits, model(ids)
    assert ours.std() > 0.1  # the comparison is of something
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_padding_on_either_side_changes_nothing(case: tuple[LanguageModel, Path]) -> None:
    model, folder = case
    foreign = opened(folder)
    ids, lengths = random_ids(model.config, 3, 20), torch.tensor([20, 13, 1])
    for side in ("left", "right"):
        positions = padded_positions(lengths, 20, side)
        real = positions >= 0
        theirs = foreign(ids, attention_mask=real.long(), position_ids=positions.clamp(min=0)).logits
        ours = model(ids, positions=positions)
        torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=1e-5)


def test_twenty_greedy_tokens_are_equal(case: tuple[LanguageModel, Path]) -> None:
    model, folder = case
    foreign = opened(folder)
    foreign.generation_config.eos_token_id = None  # no early end
    prompt = random_ids(model.config, 2, 12)
    theirs = foreign.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False, pad_token_id=0
    )
    ours = prompt
    for _ in range(20):
        ours = torch.cat((ours, model(ours)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(ours, theirs)


def test_there_and_back_is_bit_identical(case: tuple[LanguageModel, Path]) -> None:
    model, folder = case
    state = model.state_dict()
    for back in (load(folder, config=model.config), load(folder)):
        for name, tensor in back.state_dict().items():
            assert torch.equal(tensor, state.get(name, torch.zeros_like(tensor))), name
    written = (folder / "model.safetensors").read_bytes()
    save(folder / "again", load(folder), end_of_document=2)
    assert (folder / "again" / "model.safetensors").read_bytes() == written


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_in_float64_too(name: str, seed: int, tmp_path: Path) -> None:
    model = random_model(random_config(name, seed), seed).double()
    save(tmp_path, model)
    ids = random_ids(model.config, 2, 30)
    foreign = opened(tmp_path)
    assert foreign.dtype == torch.float64
    # Their RMSNorm and rotary angles are float32 whatever the model's type.
    tolerance = 1e-12 if FAMILIES[name].needs["norm"] == "layernorm" else 1e-5
    with torch.no_grad():
        torch.testing.assert_close(model(ids), foreign(ids).logits, rtol=0, atol=tolerance)
        assert torch.equal(load(tmp_path)(ids), model(ids))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_that_transformers_wrote_is_read(name: str, tied: bool, tmp_path: Path) -> None:
    config = random_config(name, 9).model_copy(update={"tied": tied})
    told = FAMILIES[name].foreign_config(config)
    foreign_config = transformers.AutoConfig.for_model(**{k: v for k, v in told.items() if k != "architectures"})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        foreign = transformers.AutoModelForCausalLM.from_config(foreign_config).eval()
        for parameter in foreign.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    foreign.save_pretrained(tmp_path)
    family, read = read_config(tmp_path)
    assert family is FAMILIES[name]
    for option in type(read).model_fields:
        if "dropout" not in option and option not in {"bias", "rope_base"}:
            assert getattr(read, option) == getattr(config, option), option
    assert read.rope_base == config.rope_base or read.positions != "rope"
    ids = random_ids(read, 2, 30)
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(ids), foreign(ids).logits, rtol=0, atol=1e-5)


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
        }
    )
    family, reason = family_of(config), obstacle(config)
    assert (family is None) == (reason is not None)
    if family is not None:
        assert family.own_config(family.foreign_config(config)) == config.model_copy(
            update={"bias": config.bias or family.always_biased}
        )


def test_the_obstacle_names_what_stands_in_the_way() -> None:
    llama = {"norm": "rmsnorm", "positions": "rope", "feedforward": "swiglu"}
    assert obstacle(ModelConfig.read(llama)) is None
    assert obstacle(ModelConfig.read(llama, {"norm_place": "post"})) == "norm_place = 'post' (llama has 'pre')"
    assert obstacle(ModelConfig(positions="alibi")) == "positions = 'alibi' (gpt2 has 'learned')"
    assert obstacle(ModelConfig(n_heads=4, n_kv_heads=2)) == "n_kv_heads = 2 (gpt2 has as many as n_heads, 4)"
    both = obstacle(ModelConfig.read(llama, {"qk_norm": True, "window": 8, "n_layers": 2})) or ""
    assert "window" in both or "qk_norm" in both


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("gpt2", {"activation_function": "gelu_new"}, "activation_function = 'gelu_new' has no equal here"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = true"),
        ("gpt2", {"embd_pdrop": 0.5, "resid_pdrop": 0.25}, "embd_pdrop = 0.5 and resid_pdrop = 0.25"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rotary positions"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rotary positions"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "rotary positions"),
        ("llama", {"rope_parameters": [1e4]}, "rotary positions"),
        ("llama", {"head_dim": 128}, "head_dim = 128 has no equal here"),
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
    config = ModelConfig.read(random_config(name, 0).model_dump(), {"n_heads": 2, "n_kv_heads": 2, "d_model": 16})
    config = config.model_copy(update={"bias": False})
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
