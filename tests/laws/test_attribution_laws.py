"""Attributions add up, are exact where the model is linear, are derivatives, and are zero where nothing can matter."""

import csv
import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from law_models import CHOICES, VOCAB_SIZE, WINDOW, make_model, name, random_ids
from pair_models import ENCODER_CHOICES, PAIR_CHOICES, make_encoder, make_translator, some_ids
from torch import Tensor

from clearhead.errors import InputError, UsageError
from clearhead.inspection import attribute, intervene
from clearhead.inspection.attribution.tokens import TOLERANCE
from clearhead.models import BigramLM, LanguageModel

TABLES = ("embedding", "source_embedding", "embedding_ngrams", "logit_ngrams")
IDS, SOURCE = random_ids(1, 9)[0].tolist(), some_ids(7, seed=1).tolist()
Make = Callable[[], LanguageModel]
MODELS = [
    *(pytest.param(partial(make_model, **choice), None, id=f"decoder-{name(choice)}") for choice in CHOICES),
    *(pytest.param(partial(make_encoder, **choice), None, id=f"encoder-{name(choice)}") for choice in ENCODER_CHOICES),
    *(pytest.param(partial(make_translator, **choice), SOURCE, id=f"pair-{name(choice)}") for choice in PAIR_CHOICES),
]


def logit(model: LanguageModel, source: list[int] | None, position: int, target: int) -> float:
    inputs = [torch.tensor([ids]) for ids in (source, IDS) if ids is not None]
    with torch.no_grad():
        return float(model(*inputs)[0, position, target])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("make", "source"), MODELS)
def test_integrated_gradients_add_up_to_what_the_logit_gains(make: Make, source: list[int] | None) -> None:
    model = make()
    result = attribute(model, IDS, 6, source=source, target=3, steps=4096)
    assert result.value == pytest.approx(logit(model, source, 6, 3), abs=1e-12)
    tables = [
        table
        for table in ("embedding", "source_embedding", "embedding_ngrams", "logit_ngrams")
        if hasattr(model, table)
    ]
    with intervene(model, {table: 0.0 for table in tables if getattr(model, table) is not None}):
        assert result.baseline == pytest.approx(logit(model, source, 6, 3), abs=1e-12)
    scores = np.concatenate([result.scores, *([] if result.source_scores is None else [result.source_scores])])
    assert abs(result.value - result.baseline - scores.sum()) <= TOLERANCE * np.abs(scores).sum() + 1e-12
    assert result.gap == pytest.approx(result.value - result.baseline - scores.sum(), abs=1e-12)


@pytest.mark.parametrize("choice", CHOICES, ids=name)
def test_what_comes_later_or_is_out_of_reach_gets_exactly_nothing(choice: dict[str, Any]) -> None:
    model = make_model(**{**choice, "n_layers": 1})
    for method in ("integrated_gradients", "gradient_x_input"):
        result = attribute(model, IDS, 6, target=3, contrast=4, method=method, steps=64)
        assert (result.scores[7:] == 0).all()
        assert result.scores[6] != 0
        if choice["sliding_window"] == WINDOW and model.config.longest_ngram == 1:
            assert (result.scores[: 7 - WINDOW] == 0).all()
            assert (result.scores[7 - WINDOW : 7] != 0).all()


@pytest.mark.parametrize(("make", "source"), MODELS[::5])
def test_gradient_x_input_is_the_derivative_by_a_tokens_share(make: Make, source: list[int] | None) -> None:
    """As finite differences have it: a token's vectors a little longer and a little shorter."""
    model, step = make(), 1e-5
    result = attribute(model, IDS, -1, source=source, target=2, method="gradient_x_input")
    for side, scores in (("source", result.source_scores), ("target", result.scores)):
        for token in range(0 if scores is None else len(scores)):
            values = [logit_with(model, source, side, token, 1 + change) for change in (step, -step)]
            assert scores is not None
            assert scores[token] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4, abs=1e-6)


def logit_with(model: LanguageModel, source: list[int] | None, side: str, token: int, share: float) -> float:
    """The last logit of token 2, where the vectors of one token are this share of themselves."""
    calls: list[str] = []

    def scaled(table: str, value: Tensor) -> Tensor:
        calls.append(table)
        is_shared = source is not None and getattr(model, "source_embedding", None) is None
        is_source = table == "source_embedding" or (is_shared and len(calls) == 1)
        if is_source != (side == "source"):
            return value
        factors = torch.ones(value.shape[1], 1, dtype=value.dtype)
        factors[token] = share
        return value * factors

    edits = {table: partial(scaled, table) for table in TABLES if getattr(model, table, None) is not None}
    with intervene(model, edits):
        return logit(model, source, -1, 2)


def test_a_linear_model_is_explained_exactly_by_either_method() -> None:
    model = BigramLM(make_model().config).double()
    with torch.no_grad():
        model.embedding.weight.normal_(generator=torch.Generator().manual_seed(0))
    for method in ("integrated_gradients", "gradient_x_input"):
        result = attribute(model, IDS, 4, target=5, contrast=1, method=method)
        expected = np.zeros(len(IDS))
        row = model.embedding.weight.detach()[IDS[4]]
        expected[4] = float(row[5] - row[1])
        np.testing.assert_allclose(result.scores, expected, rtol=0, atol=1e-12)
        assert result.baseline == 0
        assert abs(result.gap) < 1e-12


def test_a_contrast_is_the_difference_of_two_targets() -> None:
    model = make_translator()
    first, second = (
        attribute(model, IDS, source=SOURCE, target=target, method="gradient_x_input") for target in (2, 7)
    )
    both = attribute(model, IDS, source=SOURCE, target=2, contrast=7, method="gradient_x_input")
    np.testing.assert_allclose(both.scores, first.scores - second.scores, rtol=0, atol=1e-12)
    assert both.source_scores is not None
    assert first.source_scores is not None
    np.testing.assert_allclose(both.source_scores, first.source_scores - second.source_scores, rtol=0, atol=1e-12)
    assert both.value == pytest.approx(first.value - second.value)
    same = attribute(model, IDS, source=SOURCE, target=2, contrast=2)
    assert not same.scores.any()


@pytest.mark.campaign
def test_more_steps_leave_less_unexplained_and_the_target_is_the_likeliest_token() -> None:
    model = make_model(norm="rmsnorm", positions="rope", bias=False).train()
    gaps = [abs(attribute(model, IDS, steps=steps).gap) for steps in (1, 2048)]
    assert gaps[1] < gaps[0] / 10
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    with torch.no_grad():
        expected = int(model.eval()(torch.tensor([IDS]))[0, -1].argmax())
    assert attribute(model, IDS).target == expected
    assert attribute(model, IDS).position == len(IDS) - 1
    np.testing.assert_array_equal(attribute(model, torch.tensor([IDS])).scores, attribute(model, IDS).scores)
    wide = attribute(model, [*IDS, *IDS[:3]], 5, steps=64)
    narrow = attribute(model, IDS[:6], 5, steps=64)
    np.testing.assert_allclose(wide.scores[:6], narrow.scores, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"position": 9}, "there is no position 9: the model reads 9 tokens"),
        ({"position": -10}, "there is no position -10"),
        ({"method": "magic"}, "`method` is 'integrated_gradients' or 'gradient_x_input', not 'magic'"),
        ({"steps": 0}, "`steps` is at least 1"),
        ({"target": VOCAB_SIZE}, "token id 11 is not in the model's vocabulary"),
        ({"contrast": -1}, "token id -1 is not in the model's vocabulary"),
        ({"source": [1, 2]}, "only a translator reads a `source`"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        attribute(make_model(), IDS, **arguments)
    with pytest.raises(UsageError, match="a translator reads a `source`"):
        attribute(make_translator(), IDS)
    with pytest.raises(UsageError, match="one text at a time"):
        attribute(make_model(), random_ids(2, 4))
    with pytest.raises(InputError, match="token id 99"):
        attribute(make_model(), [99])


def test_the_views_hold_the_numbers_and_show_any_text_as_text() -> None:
    texts = ["<script>alert(1)</script>", "\x1b[31m", "\n", "a&b", '"', "=1", "x", "y", ""]
    result = attribute(make_translator(), IDS, source=SOURCE, target=2).named(texts, texts[:7])
    page = result.html()
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert page.count("<mark") == len(IDS) + len(SOURCE)
    rows = list(csv.DictReader(io.StringIO(result.csv())))
    assert [float(row["score"]) for row in rows[: len(SOURCE)]] == pytest.approx(result.source_scores)
    assert rows[5]["token"] == "'=1"
    assert json.loads(json.dumps(result.as_dict()))["gap"] == result.gap
    assert {row["side"] for row in result.rows()} == {"source", "target"}
    assert attribute(make_model(), IDS).rows()[0]["side"] == "prompt"
