"""What parts add to a logit sums to the logit, and each number is what the logit loses without the part's vector."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from law_models import CHOICES, make_model, name, random_ids
from pair_models import ENCODER_CHOICES, PAIR_CHOICES, make_encoder, make_translator, some_ids

from clearhead.errors import UsageError
from clearhead.inspection import direct_logit_attribution, intervene, record, without
from clearhead.models import BigramLM, DecoderLM, LanguageModel

IDS, SOURCE = random_ids(1, 9)[0].tolist(), some_ids(7, seed=1).tolist()
Make = Callable[[], LanguageModel]


def summing(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**choice, "norm_position": "pre", "head_transform": False} for choice in choices]


MODELS = [
    *(pytest.param(partial(make_model, **choice), None, id=f"decoder-{name(choice)}") for choice in summing(CHOICES)),
    *(
        pytest.param(partial(make_encoder, **choice), None, id=f"encoder-{name(choice)}")
        for choice in summing(ENCODER_CHOICES)
    ),
    *(
        pytest.param(partial(make_translator, **choice), SOURCE, id=f"pair-{name(choice)}")
        for choice in summing(PAIR_CHOICES)
    ),
]


@pytest.mark.parametrize(("make", "source"), MODELS)
def test_what_parts_add_sums_to_the_logit(make: Make, source: list[int] | None) -> None:
    model, config = make(), make().config
    with torch.no_grad():
        logits = model(*(torch.tensor([ids]) for ids in (source, IDS) if ids is not None))[0, 5]
    result = direct_logit_attribution(model, IDS, 5, source=source, target=3)
    assert result.value == pytest.approx(float(logits[3]), abs=1e-10)
    difference = direct_logit_attribution(model, IDS, 5, source=source, target=3, contrast=7)
    assert difference.value == pytest.approx(float(logits[3] - logits[7]), abs=1e-10)
    assert direct_logit_attribution(model, IDS, 5, source=source).target == int(logits.argmax())
    for contributions in (result, difference):
        assert sum(part.value for part in contributions.parts) == pytest.approx(contributions.value, abs=1e-10)
    counts = Counter(entry.part for entry in result.parts)
    assert not counts["unexplained"]
    attentions = config.n_layers * (1 if source is None else 2)
    assert counts["head"] == attentions * config.n_heads
    assert counts["feed-forward"] == config.n_layers
    assert counts["attention bias"] == attentions * config.bias
    assert counts["feed-forward bias"] == config.n_layers * config.bias
    assert counts["norm bias"] == (config.norm == "layernorm")
    assert counts["head bias"] == config.head_bias
    assert counts["positions"] == (config.positions in {"learned", "sinusoidal"} and not config.embedding_norm)


@pytest.mark.parametrize("choice", summing(CHOICES)[:6], ids=name)
def test_a_part_adds_the_derivative_along_its_vector_but_for_the_norms_scale(choice: dict[str, Any]) -> None:
    """Of the last feed-forward, which nothing but the head reads, by finite changes."""
    model: Any = make_model(**{**choice, "parallel_residual": False, "logit_ngrams": 1})
    parts = direct_logit_attribution(model, IDS, target=3).parts
    [value] = [entry.value for entry in parts if (entry.part, entry.layer) == ("feed-forward", 1)]
    part, norm, small = "stack.blocks.1.feedforward.part", model.stack.norm, 1e-6
    with torch.no_grad(), record(model, ["stack.blocks.1", part]) as trace:
        model(torch.tensor([IDS]))
    stream, written = (trace.tensor(activation)[0, -1] for activation in ("stack.blocks.1", part))
    bias, is_centered = model.stack.blocks[1].feedforward.part.down.bias, hasattr(norm, "bias")
    written = written if bias is None else written - bias.detach()

    def output(x: Any) -> Any:
        """The logit, without the norm's bias, times the norm's scale."""
        squares = (x.var(correction=0) if is_centered else x.square().mean()) + norm.eps
        return model.head((norm(x) - getattr(norm, "bias", 0)) * squares.sqrt())[3] - model.head(torch.zeros_like(x))[3]

    with torch.no_grad():
        squares = (stream.var(correction=0) if is_centered else stream.square().mean()) + norm.eps
        moved = (output(stream) - output(stream - small * written)) / small / squares.sqrt()
    assert value == pytest.approx(float(moved), rel=1e-4, abs=1e-6)


def test_parts_that_write_nothing_add_nothing() -> None:
    model = make_translator(norm_position="pre", head_transform=False)
    with torch.no_grad(), intervene(model, without(["decoder.blocks.1.cross_attention.part"])):
        result = direct_logit_attribution(model, IDS, source=SOURCE, target=3)
        logit = float(model(torch.tensor([SOURCE]), torch.tensor([IDS]))[0, -1, 3])
    values = [[part.value for part in result.parts if (part.kind, part.layer) == ("cross", layer)] for layer in (0, 1)]
    assert len(values[0]) == 4
    assert all(values[0])
    assert all(values[1]), "its heads compute, and what was put in place of their sum takes it back"
    assert sum(values[1]) == pytest.approx(0, abs=1e-12)
    assert [part.name for part in result.parts if part.part == "unexplained"] == ["cross-attention layer 1 unexplained"]
    assert sum(part.value for part in result.parts) == pytest.approx(result.value, abs=1e-10)
    assert result.value == pytest.approx(logit, abs=1e-12)
    assert model.training is False


@pytest.mark.parametrize("activation", ["stack.blocks.0", "stack.blocks.1", "stack.norm", "output"])
def test_what_an_intervention_adds_anywhere_is_unexplained(activation: str) -> None:
    model = make_model(norm_position="pre", head_transform=False)
    with torch.no_grad(), intervene(model, {activation: lambda x: x + torch.linspace(0, 1, x.shape[-1])}):
        logit = float(model(torch.tensor([IDS]))[0, -1, 3])
        result = direct_logit_attribution(model, IDS, target=3)
    assert result.value == pytest.approx(logit, abs=1e-12)
    assert [part.layer for part in result.parts if part.part == "unexplained"] == [None]
    assert sum(part.value for part in result.parts) == pytest.approx(logit, abs=1e-10)


def test_the_columns_of_the_picture_hold_their_names() -> None:
    picture = direct_logit_attribution(make_model(bias=True, norm_position="pre"), IDS).svg()
    columns = re.findall(r'<text x="([\d.]+)" y="52" text-anchor="middle">([^<]+)', picture)
    assert "feed-forward bias" in [column for _, column in columns]
    for (left, before), (right, after) in pairwise(columns):
        assert float(right) - float(left) >= 7 * (len(before) + len(after)) / 2


def test_in_float32_the_sum_is_the_logit_as_well() -> None:
    model = DecoderLM(make_model().config).train()
    result = direct_logit_attribution(model, IDS)
    with torch.no_grad():
        expected = model(torch.tensor([IDS]))[0, -1, result.target]
    assert result.value == pytest.approx(float(expected), abs=1e-5)
    assert sum(part.value for part in result.parts) == pytest.approx(float(expected), abs=1e-5)
    assert all(part.part != "unexplained" for part in result.parts)
    assert model.training


def test_what_is_no_sum_is_refused_in_a_sentence() -> None:
    for model, sentence in (
        (make_model(norm_position="post"), "post-norm"),
        (make_model(head_transform=True), "`head_transform`"),
        (BigramLM(make_model().config), "no residual stream"),
    ):
        with pytest.raises(UsageError, match=sentence):
            direct_logit_attribution(model, IDS)
    foreign: Any = make_model()
    foreign.stack.norm = torch.nn.GroupNorm(1, 9).double()
    with pytest.raises(UsageError, match="the final norm is a GroupNorm"):
        direct_logit_attribution(foreign, IDS)
    with pytest.raises(UsageError, match="no position 9"):
        direct_logit_attribution(make_model(), IDS, 9)


def test_the_views_hold_the_numbers() -> None:
    result = direct_logit_attribution(make_translator(bias=True, norm_position="pre"), IDS, source=SOURCE, target=3)
    rows = list(csv.DictReader(io.StringIO(result.csv())))
    assert sum(float(row["value"]) for row in rows) == pytest.approx(result.value)
    assert result.as_dict()["value"] == result.value
    assert result.svg().count("<rect") == sum(part.layer is not None for part in result.parts)
    assert result.html().count("<tr>") == len(result.parts) + 1
    assert "cross-attention layer 1 head 2" in result.html()
