"""What a format or an engine does not know must be at its default: by rule, for every option of a model."""

from typing import Any

import pytest

from clearhead.config import ModelConfig
from clearhead.interop import FAMILIES
from clearhead.interop.ctranslate2 import SUPPORTED_OPTIONS as KNOWN_TO_CTRANSLATE2
from clearhead.interop.ctranslate2 import ctranslate2_obstacle


def test_options_at_their_default_are_usual_and_so_are_those_that_are_known() -> None:
    assert ModelConfig().unusual_options(()) == {}
    assert ModelConfig(d_model=64, d_ff=100).unusual_options(()) == {"d_model": 128, "d_ff": 256}
    assert ModelConfig(d_model=64, d_ff=100).unusual_options({"d_model", "d_ff"}) == {}


@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.5, "attention_dropout": 0.5, "feedforward_dropout": 0.5, "init": "xavier"},
        {"rope_theta": 5.0, "partial_rotary_factor": 0.5, "relative_buckets": 8, "relative_max_distance": 9},
        {"ngram_rows": 5, "source_vocab_size": 5, "n_encoder_layers": 7, "pad_id": 3},
    ],
)
def test_an_option_that_the_model_does_not_read_is_usual(options: dict[str, Any]) -> None:
    assert ModelConfig.read(options).unusual_options(()) == {}


def test_it_is_unusual_where_the_model_reads_it() -> None:
    turned = ModelConfig(positions="rope", rope_theta=5.0, partial_rotary_factor=0.5)
    assert turned.unusual_options({"positions"}) == {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    pair = ModelConfig(architecture="encoder_decoder", n_layers=2, n_encoder_layers=3, pad_id=0)
    assert pair.unusual_options({"architecture", "n_layers"}) == {"n_encoder_layers": 2, "pad_id": None}
    assert ModelConfig(logit_ngrams=2, ngram_rows=5).unusual_options({"logit_ngrams"}) == {"ngram_rows": 16_384}


class NewOption(ModelConfig):
    """A config with an option that nobody has taught any family, format or engine."""

    attention_sinks: int = 0


def test_a_family_that_was_not_taught_an_option_refuses_it() -> None:
    for family in FAMILIES.values():
        assert not [reason for reason in family.obstacles(NewOption()) if "attention_sinks" in reason]
        assert f"attention_sinks = 4 ({family.name} has 0)" in family.obstacles(NewOption(attention_sinks=4))


def test_an_engine_that_was_not_taught_an_option_refuses_it() -> None:
    assert "attention_sinks" not in KNOWN_TO_CTRANSLATE2
    translator = {"architecture": "encoder_decoder", "positions": "sinusoidal"}
    assert ctranslate2_obstacle(NewOption.read(translator)) is None
    assert ctranslate2_obstacle(NewOption.read(translator, {"attention_sinks": 4})) == "attention_sinks 4"
