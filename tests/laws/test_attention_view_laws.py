"""What the views show of attention is what the model computed."""

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from law_models import CHOICES, WINDOW, make_model, name, random_ids
from pair_models import make_encoder, make_translator, some_ids

from clearhead.errors import UsageError
from clearhead.inspection import attend, record

TOKENS = ["To", " be", " or", "\n", " not", "<b>"]


@pytest.mark.parametrize("choice", CHOICES, ids=name)
def test_weights_and_mask_are_the_models(choice: dict[str, Any]) -> None:
    model, ids = make_model(**choice).train(), random_ids(1, 6)
    view = attend(model, [ids], TOKENS)
    assert model.training
    with record(model.eval()) as trace, torch.no_grad():
        model(ids)
    for layer, weights in enumerate(trace.attention):
        np.testing.assert_allclose(view.weights[layer], weights[0], atol=1e-6)
    window = choice.get("sliding_window") or 6
    np.testing.assert_array_equal(view.allowed, np.tri(6, dtype=bool) & ~np.tri(6, k=-window, dtype=bool))
    assert WINDOW < 6, "else the window would hide nothing"


def test_each_attention_of_a_translator_has_its_own_tokens() -> None:
    model, source, target = make_translator(), some_ids(1, 4), some_ids(1, 3)
    sources, targets = list("abcd"), list("xyz")
    cross = attend(model, [source, target], targets, sources)
    assert (cross.kind, cross.weights.shape[2:]) == ("cross", (3, 4))
    assert cross.allowed.all()
    own = attend(model, [source, target], targets, of="self")
    np.testing.assert_array_equal(own.allowed, np.tri(3, dtype=bool))
    encoder = attend(model, [source, target], sources, of="encoder")
    assert encoder.weights.shape[2:] == (4, 4)
    with record(model) as trace, torch.no_grad():
        model(source, target)
    np.testing.assert_allclose(cross.weights[1], trace.cross_attention[1][0], atol=1e-6)
    np.testing.assert_allclose(encoder.weights[0], trace.encoder_attention[0][0], atol=1e-6)


def test_what_a_model_does_not_have_is_one_sentence() -> None:
    decoder, ids = make_model(), random_ids(1, 6)
    look = partial(attend, decoder, [ids], TOKENS)
    for options, sentence in (
        ({"of": "cross"}, "no cross-attention; choose `of=self`"),
        ({"layer": 0}, "give both"),
        ({"layer": 2, "head": 0}, "no layer 2: the model has 2 layers, 0 to 1"),
        ({"layer": 0, "head": -1}, "no head -1"),
    ):
        with pytest.raises(UsageError, match=re.escape(sentence)):
            look(**options)
    assert attend(make_encoder(), [some_ids(1, 6)], TOKENS).kind == "self"
