"""Presets: complete, possible, and where a paper or a tutorial says how many parameters, exactly that many."""

import math

import pytest

from clearhead.config import OBJECTIVES, ModelConfig, RunConfig
from clearhead.config.presets import DEFAULTS, PRESETS, default_preset, preset
from clearhead.errors import UsageError
from clearhead.inspection import estimate_cost
from clearhead.interop import obstacle
from clearhead.models import build_model
from clearhead.training import learning_rate

CPU_SIZED = ["bigram", "tiny", "small", "medium", "ngram-tables", "tutorial", "translator", "masked"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_possible_and_says_all_that_its_shape_needs(name: str) -> None:
    config = RunConfig.read(preset(name).options)
    assert isinstance(config, RunConfig)
    options = preset(name).options
    assert {"steps", "batch_size", "learning_rate"} <= options["train"].keys()
    assert "block_size" in options["model"]
    if config.model.architecture != "bigram":
        assert {"n_layers", "n_heads", "d_model"} <= options["model"].keys()
    assert config.train.warmup_steps < config.train.steps
    assert preset(name).about


@pytest.mark.parametrize(
    ("name", "vocab_size", "parameters"),
    [
        ("tutorial", 65, 813_440),
        ("gpt2", 50_257, 124_439_808),  # as transformers counts GPT-2
        ("bigram", 65, 65 * 65),
        ("vaswani2017", 37_000, 37_000 * 512 + 6 * 4_204_032 + 6 * 3_152_384),  # the layers as DESIGN and torch count
    ],
)
def test_the_published_number_of_parameters(name: str, vocab_size: int, parameters: int) -> None:
    config = ModelConfig.read(preset(name).model, {"vocab_size": vocab_size})
    assert estimate_cost(config).parameters == parameters


def test_nanogpts_own_count() -> None:
    """nanoGPT prints 10.65M for its Shakespeare model, without the 256 learned positions of width 384."""
    config = ModelConfig.read(preset("nanogpt-baby").model, {"vocab_size": 65})
    assert round((estimate_cost(config).parameters - 256 * 384) / 1e6, 2) == 10.65


def test_the_published_transformer_is_as_published() -> None:
    """Vaswani et al. 2017: table 3 (base), sections 3.4, 5.1, 5.3 and 5.4, and 6.1 for the average of checkpoints."""
    config = RunConfig.read(preset("vaswani2017").options)
    model, train = config.model, config.train
    assert config.objective == "seq2seq"
    assert (model.n_encoder_layers, model.n_layers, model.n_heads, model.d_model, model.d_ff) == (6, 6, 8, 512, 2048)
    assert (model.norm_position, model.norm, model.feedforward, model.positions) == (
        "post", "layernorm", "relu", "sinusoidal",
    )  # fmt: skip
    assert model.bias
    assert model.tie_embeddings
    assert model.scale_embedding
    assert model.source_vocab_size is None
    assert {model.dropout, model.attention_dropout, model.feedforward_dropout} == {0.1}
    assert (train.beta1, train.beta2, train.adam_eps, train.weight_decay) == (0.9, 0.98, 1e-9, 0.0)
    assert (train.label_smoothing, train.optimizer, train.average_checkpoints) == (0.1, "adamw", 5)
    assert train.batch_size * model.block_size == pytest.approx(25_000, rel=0.01)
    for step in (1, 100, 4000, 4001, 50_000):  # equation 3
        published = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert learning_rate(train, step - 1) == pytest.approx(published, rel=1e-3)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_the_translators_are_folders_that_others_read(norm_position: str) -> None:
    named = [name for name in PRESETS if preset(name).objective == "seq2seq"]
    assert {"translator", "vaswani2017"} <= set(named)
    for name in named:
        config = ModelConfig.read(preset(name).model, {"norm_position": norm_position})
        assert obstacle(config) is None


@pytest.mark.parametrize("name", CPU_SIZED)
def test_a_fresh_model_has_no_opinion(name: str) -> None:
    import torch
    import torch.nn.functional as F

    config = ModelConfig.read(preset(name).model, {"vocab_size": 65})
    ids = torch.randint(64, (8, config.block_size + 1), generator=torch.Generator().manual_seed(0))
    model, (inputs, targets) = build_model(config, seed=3).eval(), (ids[:, :-1], ids[:, 1:])
    with torch.no_grad():
        if config.architecture == "encoder_decoder":
            logits = model(inputs.flip(1), inputs)
        elif config.architecture == "encoder":
            logits, targets = model(torch.full_like(inputs, 64)), inputs  # every token is hidden by a mask
        else:
            logits = model(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert abs(loss / math.log(65) - 1) < 0.02


def test_an_objective_has_a_preset_of_its_own_for_two_cores() -> None:
    sized = {preset(name).objective for name in CPU_SIZED}
    assert sized == set(OBJECTIVES)


@pytest.mark.parametrize("objective", DEFAULTS)
def test_there_is_a_default_for_any_time(objective: str) -> None:
    times = [minutes for minutes, _ in DEFAULTS[objective]]
    assert times == sorted(set(times))
    assert times[-1] == math.inf
    for minutes, name in DEFAULTS[objective]:
        assert default_preset(objective, minutes) == name
        assert preset(name).objective == objective


def test_a_preset_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'tutorial'\? \(presets: tiny, small, shallow, medium,"):
        preset("tutorail")
