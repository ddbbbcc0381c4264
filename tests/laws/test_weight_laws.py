"""The weights' table adds up to what the model has and to what costs say."""

import csv
import io
from typing import Any

import pytest
from law_models import CHOICES, Choice, name
from pair_models import ENCODER_CHOICES, PAIR_CHOICES

from clearhead.config import ModelConfig
from clearhead.inspection import estimate_cost, weigh
from clearhead.inspection.cost.weights import By
from clearhead.models import build_model

ARCHITECTURES: dict[str, list[Choice]] = {
    "decoder": CHOICES,
    "encoder": ENCODER_CHOICES,
    "encoder_decoder": PAIR_CHOICES,
    "bigram": [{}],
}
SHAPE = {"n_layers": 3, "n_encoder_layers": 2, "d_model": 16}
CONFIGS = [
    pytest.param(ModelConfig.read({"architecture": kind}, SHAPE, choice), id=f"{kind}-{name(choice)}")
    for kind, choices in ARCHITECTURES.items()
    for choice in choices
]


@pytest.mark.parametrize("by", ["weight", "sublayer"])
@pytest.mark.parametrize("config", CONFIGS)
def test_the_rows_add_up_to_the_whole(config: ModelConfig, by: By) -> None:
    table, costs = weigh(config, by=by), estimate_cost(config)
    assert table.parameters == costs.parameters
    assert table.parameters == sum(parameter.numel() for parameter in build_model(config).parameters())
    assert table.flops_per_token == costs.flops_per_token
    summed = [weight.parameters * weight.count for weights, _ in table.parts() for weight in weights]
    assert sum(summed) == table.parameters


def rows_by(config: ModelConfig, by: By = "weight") -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["stack"], row["sublayer"], row["symbol"]): row for row in weigh(config, by=by).rows()}  # type: ignore[misc]


def test_the_first_transformers_decoder_layer() -> None:
    """512 wide, 8 heads, 2,048 hidden, with biases: the numbers that the design page gives."""
    config = ModelConfig(
        architecture="encoder_decoder", d_model=512, n_heads=8, d_ff=2048, bias=True, norm_position="post", n_layers=6
    )
    rows = rows_by(config)
    for attention in ("self_attention", "cross_attention"):
        for symbol in ("Wq", "Wk", "Wv", "Wo"):
            assert rows["decoder", attention, symbol]["parameters"] == 262_656
        assert rows["decoder", attention, ""]["parameters"] == 1_050_624
    assert rows["decoder", "feedforward", "W1"]["parameters"] == 1_050_624
    assert rows["decoder", "feedforward", "W2"]["parameters"] == 1_049_088
    sublayers = rows_by(config, "sublayer")
    assert sublayers["decoder", "feedforward", ""]["parameters"] == 2_099_712
    assert sublayers["decoder", "norms", ""]["parameters"] == 3_072
    assert sublayers["decoder", "block", ""]["parameters"] == 4_204_032
    assert sublayers["decoder", "block", ""]["count"] == 6


def test_the_tutorials_model() -> None:
    config = ModelConfig(vocab_size=65, block_size=128, n_layers=4, n_heads=4, d_model=128, d_ff=512)
    assert weigh(config).parameters == 813_440


def test_as_many_layers_as_can_be_asked_for_are_a_row_each_sublayer() -> None:
    table = weigh(ModelConfig(n_layers=10**12))
    assert len(table.rows()) < 30
    assert table.parameters == estimate_cost(ModelConfig(n_layers=10**12)).parameters


def test_the_csv_has_the_rows() -> None:
    table = weigh(ModelConfig())
    read = list(csv.DictReader(io.StringIO(table.csv())))
    assert [row["parameters"] for row in read] == [str(row["parameters"]) for row in table.rows()]
