"""Presets: complete, possible, and where a paper or a tutorial says how many parameters, exactly that many."""

import math

import pytest

from clearhead.config import ModelConfig, RunConfig
from clearhead.errors import UsageError
from clearhead.inspection import account
from clearhead.models import build
from clearhead.presets import DEFAULT, PRESETS, preset

CPU_SIZED = ["bigram", "small", "tutorial"]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_possible_and_says_all_that_its_shape_needs(name: str) -> None:
    config = RunConfig.read(preset(name).options)
    assert isinstance(config, RunConfig)
    given = preset(name).options
    assert {"steps", "batch_size", "learning_rate"} <= given["train"].keys()
    assert "block_size" in given["model"]
    if config.model.architecture == "decoder":
        assert {"n_layers", "n_heads", "d_model"} <= given["model"].keys()
    assert config.train.warmup_steps < config.train.steps
    assert preset(name).about


@pytest.mark.parametrize(
    ("name", "vocab_size", "parameters"),
    [
        ("tutorial", 65, 813_440),
        ("gpt2", 50_257, 124_439_808),  # as transformers counts GPT-2
        ("bigram", 65, 65 * 65),
    ],
)
def test_the_published_number_of_parameters(name: str, vocab_size: int, parameters: int) -> None:
    config = ModelConfig.read(preset(name).model, {"vocab_size": vocab_size})
    assert account(config).parameters == parameters


def test_nanogpts_own_count() -> None:
    """nanoGPT prints 10.65M for its Shakespeare model, without the 256 learned positions of width 384."""
    config = ModelConfig.read(preset("nanogpt-baby").model, {"vocab_size": 65})
    assert round((account(config).parameters - 256 * 384) / 1e6, 2) == 10.65


@pytest.mark.parametrize("name", CPU_SIZED)
def test_a_fresh_model_has_no_opinion(name: str) -> None:
    import torch
    import torch.nn.functional as F

    config = ModelConfig.read(preset(name).model, {"vocab_size": 65})
    ids = torch.randint(65, (8, config.block_size + 1), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = build(config, seed=3).eval()(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()
    assert abs(loss / math.log(65) - 1) < 0.02


def test_the_default_is_one_of_them() -> None:
    assert DEFAULT in PRESETS


def test_a_preset_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'tutorial'\? \(presets: small, bigram"):
        preset("tutorail")
